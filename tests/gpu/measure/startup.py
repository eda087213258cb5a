"""Seconds by phase from exec to the first token: a rank with cold and with warm compiled kernels.

Then ``mizzen serve`` from exec to its first token over HTTP, as a user sees it, where what it
imports is installed; its kernels are warm. Made-up weights of Qwen3-0.6B. Checked: the first start
compiles kernels ahead with none failing and finds them all, the second compiles none, no step is
captured again, and graphs take no more memory than was set aside for them.

Prediction for one H200 with 16 cores: cold 20-25 s (4 s imports, 12 s for some 150 kernels, told
and compiled at once); warm 7-8.5 s: imports 4 (context and hash beside them), memory 0.9, some 110
graphs 2-2.5 (before: 5.0 for 118; each rehearsed in 1 ms, captured in 10 to 15), warming up 0.6;
serve warm 8-9.5 s.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from tests.benchmark_models import write_config
from tests.gpu.measure.harness import Readings

from mizzen_worker.bench.server import serve

_LIMIT_S = 240
_TO_SERVE = (
    *("fastapi", "httptools", "jinja2", "msgspec", "opentelemetry", "pydantic", "re2"),
    *("uvicorn", "uvloop", "zmq"),
)


def measure(readings: Readings) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "qwen06b", Path(place) / "kernels"
        folder.mkdir()
        write_config(folder, "qwen06b")
        cold = _rank(folder, cache)
        readings.add("rank, cold", **cold)
        warm = _rank(folder, cache)
        readings.add("rank, warm", **warm)
        _serve(readings, folder, cache)
        _check(cold, warm)


def _rank(folder: Path, cache: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.gpu.measure.start_child", str(folder), str(cache)]
    done = subprocess.run(
        [*command, str(time.monotonic())],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    if done.stderr:
        print(done.stderr[-2000:], flush=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check(cold: dict[str, object], warm: dict[str, object]) -> None:
    first, second = (start["log"] for start in (cold, warm))
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    compiled = first["kernels compiled"]
    assert compiled["kernels"] > 50, compiled
    assert compiled["failed"] == 0, compiled
    assert "kernels compiled" not in second, second
    here = [cold["compiled here"], warm["compiled here"]]
    assert here == [[], []], f"compiled ahead, and not found: {here}"
    assert "a step was captured again" not in {**first, **second}, second
    set_aside = float(second["KV memory is sized"]["sum"].split("graphs ")[1].split(";")[0])
    free = warm["free GiB"]
    assert isinstance(free, dict)
    taken = free["capturing graphs"] - free["warming up"]
    print(f"graphs: {set_aside} GiB set aside, {taken:.2f} taken", flush=True)
    assert taken <= set_aside + 0.1


def _serve(readings: Readings, folder: Path, cache: Path) -> None:
    missing = [name for name in _TO_SERVE if importlib.util.find_spec(name) is None]
    if missing:
        readings.add("serve, warm", left_out=f"not installed: {', '.join(missing)}")
        return
    flags = ("--model", str(folder), "--load-format", "dummy", "--skip-tokenizer")
    device = ("--device", "cuda", "--compile-cache", str(cache))
    started = time.monotonic()
    with serve([*flags, *device]) as url:
        ready_s = time.monotonic() - started
        body = {
            "input_ids": [number % 1000 for number in range(1024)],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
        answer = httpx.post(f"{url}/generate", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        first_s = time.monotonic() - started
    facts = {"ready s": round(ready_s, 2), "first token s": round(first_s, 2)}
    readings.add("serve, warm", cores=len(os.sched_getaffinity(0)), **facts)
