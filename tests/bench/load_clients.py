"""Puts load on ``mizzen serve`` with three clients that others wrote, and checks what they counted.

Owns the commands, the reading of each client's own report and the comparison with the server's
counters; the clients live in own virtual environments, for their pins contradict ours.

    PYTHONPATH=.:operator:worker .venv/bin/python -m tests.bench.load_clients --requests 64
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.bench.report import publish
from tests.devcluster.folders import user_folders
from tests.worker.launched import Launched, free_port

from mizzen_worker.observability import metric_names
from mizzen_worker.vocabulary.load import load_vocabulary

PINS = Path(__file__).with_name("clients")
NAME = "smollm2"
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every client is asked to do."""

    url: str
    tokenizer: Path
    num_requests: int
    concurrency: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client says happened; times in milliseconds."""

    completed: int
    failed: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: float
    itl_ms: float


def _sglang(python: Path, load: Load, out: Path) -> Told:
    report = out / "sglang.jsonl"
    _run(
        [
            *(str(python), "-m", "sglang.benchmark.serving", "--backend", "sglang"),
            *("--base-url", load.url, "--model", NAME, "--tokenizer", str(load.tokenizer)),
            *("--dataset-name", "random-ids", "--random-range-ratio", "1.0", "--seed", "1"),
            *("--num-prompts", str(load.num_requests), "--warmup-requests", "0"),
            *("--random-input-len", str(load.input_tokens)),
            *("--random-output-len", str(load.output_tokens)),
            *("--max-concurrency", str(load.concurrency), "--output-file", str(report)),
        ],
        out / "sglang.log",
    )
    got = json.loads(report.read_text().splitlines()[-1])
    return Told(
        completed=got["completed"],
        failed=load.num_requests - got["completed"],
        output_tokens=got["total_output_tokens"],
        output_tokens_per_s=got["output_throughput"],
        ttft_ms=got["median_ttft_ms"],
        itl_ms=got["median_itl_ms"],
    )


def _guidellm(python: Path, load: Load, out: Path) -> Told:
    data = f"prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}"
    _run(
        [
            *(str(python.with_name("guidellm")), "run"),
            *("--backend", f"kind=openai_http,target={load.url},model={NAME}"),
            *("--profile", f"kind=concurrent,streams={load.concurrency}"),
            *("--constraint", f"kind=max_requests,count={load.num_requests}"),
            *("--tokenizer", f"kind=hf_auto,model={load.tokenizer}"),
            *("--data", f"kind=synthetic_text,{data}"),
        ],
        out / "guidellm.log",
    )
    (benchmark,) = json.loads((out / "benchmarks.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]

    def of(name: str) -> dict[str, Any]:
        found: dict[str, Any] = metrics[name]["successful"]
        return found

    return Told(
        completed=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        output_tokens=round(of("output_token_count")["total_sum"]),
        output_tokens_per_s=of("output_tokens_per_second")["mean"],
        ttft_ms=of("time_to_first_token_ms")["median"],
        itl_ms=of("inter_token_latency_ms")["median"],
    )


def _aiperf(python: Path, load: Load, out: Path) -> Told:
    _run(
        [
            *(str(python.with_name("aiperf")), "profile", "--model", NAME, "--url", load.url),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(load.tokenizer)),
            *("--request-count", str(load.num_requests), "--random-seed", "1"),
            *("--concurrency", str(load.concurrency), "--use-server-token-count"),
            *("--synthetic-input-tokens-mean", str(load.input_tokens)),
            *("--output-tokens-mean", str(load.output_tokens), "--ui", "none"),
            *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(out / "aiperf")),
        ],
        out / "aiperf.log",
    )
    got = json.loads((out / "aiperf" / "profile_export_aiperf.json").read_text())
    completed = round(got["request_count"]["avg"])
    return Told(
        completed=completed,
        failed=load.num_requests - completed,
        output_tokens=round(got["total_usage_completion_tokens"]["avg"]),
        output_tokens_per_s=got["output_token_throughput"]["avg"],
        ttft_ms=got["time_to_first_token"]["p50"],
        itl_ms=got["inter_token_latency"]["p50"],
    )


CLIENTS: dict[str, Callable[[Path, Load, Path], Told]] = {
    "sglang": _sglang,
    "guidellm": _guidellm,
    "aiperf": _aiperf,
}


def _run(words: list[str], log: Path) -> None:
    """Run a client where it can reach no model hub; its output goes to ``log``."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # aiperf treats a local folder as a name when told to stay offline.
    if "aiperf" not in words[0]:
        environment["HF_HUB_OFFLINE"] = "1"
    with log.open("wb") as out:
        done = subprocess.run(
            words, stdout=out, stderr=out, env=environment, cwd=log.parent, check=False
        )
    if done.returncode:
        sys.stderr.write(log.read_text()[-4000:])
        raise SystemExit(f"{words[0]} ended with {done.returncode}")


def _install(name: str) -> Path:
    """Give the interpreter of a client's environment, made from its pins at the first call."""
    root = user_folders().root
    folder = root / "clients" / name
    python = folder / "bin" / "python"
    pins = PINS / f"{name}.txt"
    mark = folder / "pins.txt"
    if mark.exists() and mark.read_text() == pins.read_text():
        return python
    print(f"installing {name} (its own environment, once)", flush=True)
    uv = str(root / "boot" / "bin" / "uv")
    environment = {**os.environ, "UV_CACHE_DIR": str(root / "uv")}
    venv = [uv, "venv", "-q", "--clear", "-p", sys.executable, str(folder)]
    subprocess.run(venv, check=True, env=environment)
    install = [uv, "pip", "install", "-q", "-p", str(python), "--no-deps", "-r", str(pins)]
    subprocess.run(install, check=True, env=environment)
    mark.write_text(pins.read_text())
    return python


def _find_model() -> Path:
    models = user_folders().root / "models"
    found = sorted(models.glob("*/*.gguf"))
    if not found:
        raise SystemExit(f"no .gguf file below {models}: run `make setup` first")
    return found[0]


def _write_tokenizer(model: Path, folder: Path) -> Path:
    """Write the model's own tokenizer as the folder that transformers reads."""
    folder.mkdir()
    load_vocabulary(model)  # Extracts the tokenizer of a GGUF file beside it.
    (folder / "tokenizer.json").write_bytes(model.with_suffix(".tokenizer.json").read_bytes())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 8192,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _num_generated(served: Launched) -> float:
    """Read the engine's own counter of tokens."""
    wanted = metric_names.ENGINE_TOKENS.name
    lines = httpx.get(f"{served.admin}/metrics", timeout=10).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def main() -> None:
    """Run every client against one server, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--json", type=Path, default=Path("out/bench/load_clients.json"))
    asked = parser.parse_args()
    pythons = {name: _install(name) for name in CLIENTS}
    model, port = _find_model(), free_port()
    rows: list[dict[str, str | int | float]] = []
    with tempfile.TemporaryDirectory(prefix="mizzen-clients-") as folder:
        out = Path(folder)
        load = Load(
            url=f"http://127.0.0.1:{port}",
            tokenizer=_write_tokenizer(model, out / "tokenizer"),
            num_requests=asked.requests,
            concurrency=asked.concurrency,
            input_tokens=asked.input_tokens,
            output_tokens=asked.output_tokens,
        )
        command = ("serve", str(model), "--http-port", str(port), "--served-model-name", NAME)
        with Launched(*command, log=out / "log", admin_port=free_port()) as served:
            served.until_ready()
            for name, run in CLIENTS.items():
                rows.append(_measure(name, run, pythons[name], load, out, served))
                print(rows[-1], flush=True)
    publish("load_clients", rows, asked.json)
    if any(row["failed"] or row["is_exact"] == "no" for row in rows):
        raise SystemExit("a request failed, or a client counted other tokens than were asked for")


def _measure(
    name: str,
    run: Callable[[Path, Load, Path], Told],
    python: Path,
    load: Load,
    out: Path,
    served: Launched,
) -> dict[str, str | int | float]:
    before = _num_generated(served)
    told = run(python, load, out)
    served.until(lambda: _num_generated(served) - before >= told.output_tokens, 10)
    wanted = load.num_requests * load.output_tokens
    return {
        "client": name,
        "completed": told.completed,
        "failed": told.failed,
        "output tokens": told.output_tokens,
        "server's tokens": round(_num_generated(served) - before),
        "is_exact": "yes" if told.output_tokens == wanted else "no",
        "output tok/s": told.output_tokens_per_s,
        "ttft ms": told.ttft_ms,
        "itl ms": told.itl_ms,
    }


if __name__ == "__main__":
    main()
