"""Programs of tests that run apart: Triton's driver is global, and elsewhere it interprets."""

import os
import subprocess
import sys


def run_compiling(module: str, *arguments: str) -> str:
    """What ``python -m module`` prints where kernels are compiled, not interpreted.

    Raises ``AssertionError`` with the end of what it said if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
