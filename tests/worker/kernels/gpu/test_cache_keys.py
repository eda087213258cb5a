"""A kernel has one name in Triton's cache, whatever a process compiled before."""

import json

import pytest
from tests.worker.kernels.gpu.compiled_process import run_compiling


def _keys(first: str) -> dict[str, object]:
    printed = run_compiling("tests.worker.kernels.gpu.kernel_keys", first)
    found: dict[str, object] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.slow
def test_names_of_kernels_depend_on_no_order() -> None:
    one, other = _keys("first"), _keys("last")
    assert one["ambiguous"] == []
    assert one["keys"]
    assert one["keys"] == other["keys"]
