"""Turns launches into compilations, so that a wrapper compiles exactly what it would launch.

For ``compile_all`` of a test module: inside ``compiled_only()`` a wrapper called with tensors of
the device "meta" compiles its kernels for the claimed GPU and prints what they take of it.
"""

import contextlib
from collections.abc import Callable, Iterator

from tests.worker.kernels.gpu.ahead_of_time import compile_kernel
from triton.runtime.jit import KernelInterface


def _compile_instead(kernel: object, grid: tuple[int, ...]) -> Callable[..., None]:
    return lambda *arguments, **options: compile_kernel(kernel, grid, *arguments, **options)


@contextlib.contextmanager
def compiled_only() -> Iterator[None]:
    """While this is open, ``kernel[grid](...)`` compiles and launches nothing."""
    before = KernelInterface.__getitem__
    KernelInterface.__getitem__ = _compile_instead
    try:
        yield
    finally:
        KernelInterface.__getitem__ = before
