"""A kernel has one name in Triton's cache, whatever a process compiled before."""

import json
import os
import subprocess
import sys

import pytest


def _keys(first: str) -> dict[str, object]:
    """In a process of its own: kernels under test elsewhere are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "tests.worker.kernels.gpu.kernel_keys", first]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_names_of_kernels_depend_on_no_order() -> None:
    one, other = _keys("first"), _keys("last")
    assert one["ambiguous"] == []
    assert one["keys"]
    assert one["keys"] == other["keys"]
