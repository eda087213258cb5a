"""Kernels that were noted without being launched are found in the cache when they are."""

import json
from pathlib import Path

import pytest
from tests.worker.kernels.gpu.compiled_process import run_compiling


@pytest.mark.slow
def test_noted_kernels_are_compiled_once_and_then_found(tmp_path: Path) -> None:
    printed = run_compiling("tests.worker.kernels.gpu.compiled_ahead", str(tmp_path))
    found = json.loads(printed.splitlines()[-1])
    assert found["told"] == [[0, 3], [1, 3], [2, 3], [3, 3]]
    assert found["hits"] == [True, True, True]
    assert found["new"] == 0
    assert found["refused"].startswith("add_to_first was not launched before")
    assert found["noted"] == ["add_one"]
    assert sum(name.endswith(".filled") for name in found["files"]) == 1
