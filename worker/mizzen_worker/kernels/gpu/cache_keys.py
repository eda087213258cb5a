"""Owns that a compiled kernel has the same name in Triton's cache in every process; compiles none.

Triton 3.6 puts the constants of a function that a kernel calls into the kernel's name only if that
function was hashed before, for a kernel that was compiled earlier in this process. So the name
depended on what a process had done, and what one compiled, another did not find. Hashed from the
called to the caller, a name depends on the sources alone. Later releases do that themselves.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITCallable

_PACKAGE = __name__.partition(".")[0] + "."


def settle_keys() -> None:
    """Hash every kernel of this package that was imported; before the first is compiled."""
    settled: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_PACKAGE):
            for member in tuple(vars(module).values()):
                if isinstance(member, JITCallable):
                    _settle(member, settled)


def settle_key(kernel: Any) -> None:
    """Hash one kernel, a ``JITFunction``."""
    _settle(kernel, set())


def _settle(function: JITCallable, settled: set[int]) -> None:
    if id(function) in settled:
        return
    settled.add(id(function))
    for called in _called(function):
        _settle(called, settled)
    hash(function)  # Made once and kept, together with the constants that it uses.


def _called(function: JITCallable) -> Iterator[JITCallable]:
    """Functions that one names, by themselves or in a module (``tl.sum``)."""
    names = function.fn.__code__.co_names
    known = function.fn.__globals__
    for name in names:
        value = known.get(name)
        if isinstance(value, JITCallable):
            yield value
        elif isinstance(value, ModuleType):
            members = (vars(value).get(member) for member in names)
            yield from (member for member in members if isinstance(member, JITCallable))
