"""Serves a tiny model on GPUs as users do, and asks it what each test of that asks."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import Launched, free_port

fastapi = pytest.importorskip("fastapi", reason="missing: fastapi, opentelemetry-api")

BODIES: list[dict[str, object]] = [
    {
        "text": f"{number} " + "The whole of it. " * (1 + 5 * number),
        "sampling_params": {"max_new_tokens": 60, "ignore_eos": True, **sampling},
    }
    for number, sampling in enumerate(
        (
            {"temperature": 0},
            {"temperature": 0, "repetition_penalty": 1.2},
            {"temperature": 0.9, "sampling_seed": 5},
            {"temperature": 1.0, "sampling_seed": 6, "top_p": 0.9, "top_k": 40},
        )
    )
]


def serve(model: Path, log: Path, port: int, *flags: str) -> Launched:
    """Start it in float32."""
    return Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "2"),
        *("--dtype", "float32", "--kv-tokens", "4096", *flags),
        log=log,
        admin_port=free_port(),
        path=Path(str(fastapi.__file__)).parents[1],
    )


def answers(url: str) -> list[list[int]]:
    """Tokens of the answers to ``BODIES``, asked at once."""

    def ask(body: dict[str, object]) -> list[int]:
        return httpx.post(f"{url}/generate", json=body, timeout=120).json()["output_ids"]

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))
