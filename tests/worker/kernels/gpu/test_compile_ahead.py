"""Kernels that were noted without being launched are found in the cache when they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_noted_kernels_are_compiled_once_and_then_found(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.kernels.gpu.compiled_ahead", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["told"] == [[0, 3], [1, 3], [2, 3], [3, 3]], done.stderr[-2000:]
    assert found["hits"] == [True, True, True]
    assert found["new"] == 0
    assert found["refused"].startswith("add_to_first was not launched before")
    assert found["noted"] == ["add_one"]
    assert sum(name.endswith(".filled") for name in found["files"]) == 1
