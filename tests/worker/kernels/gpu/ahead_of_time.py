"""Compiles Triton kernels for a GPU that is not there, and tells what they would take of it.

Run as a program: ``python -m tests.worker.kernels.gpu.ahead_of_time MODULE CAPABILITY`` imports
``MODULE`` with a driver in place that claims the capability (80, 89, 90), and prints one line of
JSON per kernel. ``MODULE`` is a test module with a function ``launch_all()``, which calls the
product's wrappers with tensors that hold nothing (``empty``): what they would launch is noted, then
compiled. It is a process of its own, because the driver is global and kernels under test elsewhere
are interpreted.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from tests.worker.kernels.gpu.compiled_process import run_compiling

from mizzen_worker.kernels.gpu.claimed_driver import SHARED_MEMORY_BY_CAPABILITY, ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import KernelRequest, recorded_kernels
from mizzen_worker.kernels.gpu.compile_worker import jit_function


def claim(capability: int) -> None:
    """Let Triton of this process compile for a GPU of such a capability."""
    triton.runtime.driver.set_active(ClaimedDriver(capability))


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that has no values, for launches that are only noted."""
    return torch.empty(shape, dtype=dtype, device="meta")


def compile_elsewhere(module: str, capability: int) -> list[dict[str, object]]:
    """Compile what ``module.launch_all`` launches in a fresh process; gives its records.

    Raises ``AssertionError`` where something does not compile or wants too much shared memory.
    """
    program = "tests.worker.kernels.gpu.ahead_of_time"
    printed = run_compiling(program, module, str(capability))
    records = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert records, f"{module} compiled nothing"
    for record in records:
        assert record["shared"] <= SHARED_MEMORY_BY_CAPABILITY[capability], record
    return records


def _record_of(request: KernelRequest) -> dict[str, object]:
    """Compile a kernel; gives registers, stack and shared memory, and what it is made for."""
    kernel = jit_function(request)
    compiled = kernel.preload(request.data)
    usage = _usage(compiled.asm["cubin"])
    made_for = json.loads(request.data)
    constants = zip(made_for["constant_keys"], made_for["constant_vals"], strict=True)
    return {
        "kernel": request.name.split(".")[-1],
        "registers": int(usage["REG"]),
        "stack": int(usage["STACK"]),
        "shared": compiled.metadata.shared,
        "num_warps": made_for["options"]["num_warps"],
        "constants": {kernel.arg_names[path[0]]: value for path, value in constants},
    }


def _usage(binary: bytes) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [word for line in printed.splitlines() for word in line.split() if ":" in word]
    return dict(word.split(":", 1) for word in words)


def main() -> None:
    module, capability = sys.argv[1], int(sys.argv[2])
    claim(capability)
    with recorded_kernels() as requests:
        importlib.import_module(module).launch_all()
    for request in requests:
        print(json.dumps(_record_of(request)), flush=True)


if __name__ == "__main__":
    main()
