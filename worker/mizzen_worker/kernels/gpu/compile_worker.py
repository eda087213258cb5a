"""Owns a process that compiles kernels into Triton's cache; decides none and touches no GPU.

Its one argument is the compute capability (90). Each line it reads is a ``KernelRequest``, each
answer a line: ``compiled``, or ``failed`` with the reason on standard error.
"""

import contextlib
import importlib
import subprocess
import sys
from typing import Any

import msgspec
import triton
from triton.backends.nvidia.driver import CudaLauncher

from mizzen_worker.kernels.gpu.cache_keys import settle_key
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import KernelRequest

_EXPECTED = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    subprocess.CalledProcessError,
    triton.TritonError,
)


def main() -> None:
    """Run until there is nothing more to read."""
    triton.runtime.driver.set_active(ClaimedDriver(int(sys.argv[1])))
    decode = msgspec.json.Decoder(KernelRequest).decode
    for line in sys.stdin:
        request = decode(line)
        try:
            kernel = jit_function(request)
            settle_key(kernel)
            compiled = kernel.preload(request.data)
        except _EXPECTED as error:
            sys.stderr.write(f"{request.name}: {type(error).__name__}: {error}\n")
            answer = "failed\n"
        else:
            _compile_launcher(compiled)
            answer = "compiled\n"
        sys.stdout.write(answer)
        sys.stdout.flush()


def jit_function(request: KernelRequest) -> Any:
    """The kernel itself, below what decorators put around it."""
    found = importlib.import_module(request.module)
    for part in request.name.split("."):
        found = getattr(found, part)
    while not isinstance(found, triton.JITFunction):
        found = found.fn
    return found


def _compile_launcher(compiled: Any) -> None:
    """Compile the C function that launches it, where Triton has one per signature (3.6).

    Newer releases have one for all, which asks for a real driver: nothing is to be done then. Nor
    is the kernel lost where there is no C compiler here.
    """
    with contextlib.suppress(*_EXPECTED):
        CudaLauncher(compiled.src, compiled.metadata)


if __name__ == "__main__":
    main()
