"""Owns refusing launches of kernels that are not on the device yet, while a graph is captured.

To compile a kernel, or to bring it to the device, is not allowed there, and what fails in the
driver would spoil the graph. Here the launch fails before anything is done. Loads and compiles
nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import triton


class UnknownKernelError(RuntimeError):
    """A kernel, or a specialisation of it, was to be launched for the first time."""


@contextmanager
def only_known_kernels() -> Iterator[None]:
    """Let a launch raise ``UnknownKernelError`` if it is the first of its kind in this process."""

    def refuse(*, fn: Any, **_: object) -> NoReturn:
        message = f"{fn.name} was not launched before with arguments of this kind"
        raise UnknownKernelError(message)

    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = refuse
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = before
