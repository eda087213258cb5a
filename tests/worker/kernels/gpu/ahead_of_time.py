"""Compiles Triton kernels for a GPU that is not there, and tells what they would take of it.

Run as a program: ``python -m tests.worker.kernels.gpu.ahead_of_time MODULE CAPABILITY`` imports
``MODULE`` (a test module with a function ``compile_all(capability)``) with a driver in place that
claims the capability (80, 89, 90), and prints one line of JSON per compiled kernel. It is a process
of its own, because the driver is global and kernels under test elsewhere are interpreted.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import triton

from mizzen_worker.kernels.gpu.claimed_driver import SHARED_MEMORY_BY_CAPABILITY, ClaimedDriver


def claim(capability: int) -> None:
    """Let Triton of this process compile for a GPU of such a capability."""
    triton.runtime.driver.set_active(ClaimedDriver(capability))


def compile_kernel(
    kernel: object, grid: tuple[int, ...], *arguments: object, **options: object
) -> None:
    """Compile as ``kernel[grid](...)`` would; prints registers, stack and shared memory."""
    compiled = kernel.warmup(*arguments, grid=grid, **options)  # type: ignore[attr-defined]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [word for line in printed.splitlines() for word in line.split() if ":" in word]
    usage = dict(word.split(":", 1) for word in words)
    record = {
        "kernel": kernel.__name__,  # type: ignore[attr-defined]
        "registers": int(usage["REG"]),
        "stack": int(usage["STACK"]),
        "shared": compiled.metadata.shared,
        "options": {name: str(value) for name, value in options.items()},
    }
    print(json.dumps(record), flush=True)


def compile_elsewhere(module: str, capability: int) -> list[dict[str, object]]:
    """Compile what ``module.compile_all`` asks for in a fresh process; gives its records.

    Raises ``AssertionError`` where something does not compile or wants too much shared memory.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.worker.kernels.gpu.ahead_of_time", module]
    done = subprocess.run(
        [*command, str(capability)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert records, f"{module} compiled nothing"
    for record in records:
        assert record["shared"] <= SHARED_MEMORY_BY_CAPABILITY[capability], record
    return records


def main() -> None:
    module, capability = sys.argv[1], int(sys.argv[2])
    claim(capability)
    importlib.import_module(module).compile_all(capability)


if __name__ == "__main__":
    main()
