"""Owns the check that interpreted kernels stay inside the tensors they were given; runs none.

On a GPU a load beyond its tensor ends the process if it meets no memory, and goes unnoticed if it
does; the interpreter reads whatever is there. Under ``checked_bounds`` every lane that is not
masked off, of every load, store and atomic, descriptors' included, must lie inside the very tensor
whose pointer it was made from. And what ``torch.empty`` gives holds NaN or the largest integer, so
an index that nobody wrote leads outside.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

_TAG_BIT = np.uint64(48)
"""Addresses of a process have fewer bits: above them a pointer carries its argument's number."""
_ADDRESS = np.uint64((1 << 48) - 1)


class OutOfBoundsError(AssertionError):
    """A kernel touched what it was not given."""


@dataclass(frozen=True)
class _Region:
    """Where an argument lies: from its first byte to behind its last."""

    argument: str
    first: int
    end: int
    shape: tuple[int, ...]


def _region(argument: str, tensor: torch.Tensor) -> _Region:
    # A wrapper of another element type stands for the tensor that it wraps.
    base = tensor if isinstance(tensor, torch.Tensor) else tensor.base
    first, size = base.data_ptr(), base.element_size()
    span = 0
    if base.numel():
        pairs = zip(base.shape, base.stride(), strict=True)
        span = sum((length - 1) * stride for length, stride in pairs) + 1
    return _Region(argument, first, first + span * size, tuple(base.shape))


class _Launch:
    """The launch that is being interpreted."""

    def __init__(self, kernel: str, named: dict[str, object]) -> None:
        self.kernel = kernel
        self.regions: list[_Region] = []
        self._argument_by_object = {id(value): name for name, value in named.items()}
        self._argument_by_address = {
            value.data_ptr(): name for name, value in named.items() if hasattr(value, "data_ptr")
        }

    def enter(self, tensor: Any) -> np.uint64:
        """Give a tensor's pointer its tag."""
        name = self._argument_by_object.get(id(tensor))
        address = tensor.data_ptr()
        name = name or self._argument_by_address.get(address, "a descriptor's base")
        self.regions.append(_region(name, tensor))
        return (np.uint64(len(self.regions)) << _TAG_BIT) | np.uint64(address)

    def check(self, what: str, pointers: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray:
        """Take the tags off; raises ``OutOfBoundsError``."""
        tags, places = pointers >> _TAG_BIT, pointers & _ADDRESS
        is_used = np.broadcast_to(mask, pointers.shape)
        for tag in np.unique(tags[is_used]).tolist():
            if not 1 <= tag <= len(self.regions):
                message = f"{self.kernel}: {what} through what is no pointer of an argument"
                raise OutOfBoundsError(message)
            region = self.regions[tag - 1]
            mine = places[is_used & (tags == tag)].astype(np.int64)
            outside = mine[(mine < region.first) | (mine + size > region.end)]
            if len(outside):
                raise OutOfBoundsError(self._message(what, region, outside, size))
        # Lanes that are masked off are not read, but the address must be one.
        return np.where(is_used, places, np.uint64(0))

    def _message(self, what: str, region: _Region, outside: np.ndarray, size: int) -> str:
        offsets = (outside - region.first) // size
        program = interpreter.interpreter_builder.grid_idx
        return (
            f"{self.kernel}: {what} of element {offsets.min()} to {offsets.max()} ({len(outside)} "
            f"lanes) of {region.argument}, which has {(region.end - region.first) // size} in the "
            f"shape {region.shape}; program {program}"
        )


class _Checker:
    """What is patched into the interpreter."""

    def __init__(self) -> None:
        self._launch = _Launch("no launch", {})
        self._builder = interpreter.InterpreterBuilder
        self._convert = interpreter._implicit_cvt
        self._execute = interpreter.GridExecutor.__call__
        self._load = self._builder.create_masked_load
        self._store = self._builder.create_masked_store
        self._swap = self._builder.create_atomic_cas
        self._modify = self._builder.create_atomic_rmw
        self.num_launches = 0

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it in."""
        replacements: dict[str, Callable[..., object]] = {
            "create_masked_load": self._checked_load(),
            "create_masked_store": self._checked_store(),
            "create_atomic_cas": self._checked_swap(),
            "create_atomic_rmw": self._checked_modify(),
        }
        for name, replacement in replacements.items():
            monkeypatch.setattr(self._builder, name, replacement)
        monkeypatch.setattr(interpreter, "_implicit_cvt", self._tagged)
        monkeypatch.setattr(interpreter.GridExecutor, "__call__", self._checked_execute())

    def _tagged(self, argument: Any) -> Any:
        converted = self._convert(argument)
        if hasattr(argument, "data_ptr"):
            converted.handle.data = np.array([self._launch.enter(argument)], dtype=np.uint64)
        return converted

    def _checked_execute(self) -> Callable[..., object]:
        def execute(executor: Any, *arguments: object, **named: object) -> None:
            accepted = inspect.signature(executor.fn).parameters
            own = {name: value for name, value in named.items() if name in accepted}
            bound = inspect.getcallargs(executor.fn, *arguments, **own)
            self._launch = _Launch(executor.fn.__name__, bound)
            self.num_launches += 1
            try:
                self._execute(executor, *arguments, **named)
            except InterpreterError as error:
                if isinstance(error.__cause__, OutOfBoundsError):
                    raise error.__cause__ from None
                raise

        return execute

    def _checked(self, what: str, pointers: Any, mask: np.ndarray | None = None) -> Any:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        used = np.ones_like(pointers.data, dtype=bool) if mask is None else mask
        places = self._launch.check(what, pointers.data, used, size)
        return interpreter.TensorHandle(places, pointers.dtype)

    def _checked_load(self) -> Callable[..., object]:
        # Triton calls it by names here and there.
        def load(
            builder: Any, ptrs: Any, mask: Any, other: Any, cache_policy: Any, is_volatile: Any
        ) -> object:
            places = self._checked("a load", ptrs, mask.data)
            return self._load(builder, places, mask, other, cache_policy, is_volatile)

        return load

    def _checked_store(self) -> Callable[..., object]:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *others: object) -> object:
            places = self._checked("a store", pointers, mask.data)
            return self._store(builder, places, value, mask, *others)

        return store

    def _checked_swap(self) -> Callable[..., object]:
        def swap(builder: Any, pointers: Any, *others: object) -> object:
            return self._swap(builder, self._checked("an atomic", pointers), *others)

        return swap

    def _checked_modify(self) -> Callable[..., object]:
        def modify(
            builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *others: object
        ) -> object:
            places = self._checked("an atomic", pointers, mask.data)
            return self._modify(builder, operation, places, value, mask, *others)

        return modify


@contextmanager
def checked_bounds() -> Iterator[_Checker]:
    """While this is open, interpreted kernels are checked and new memory holds no numbers."""
    checker = _Checker()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.MonkeyPatch.context() as monkeypatch:
        checker.patch(monkeypatch)
        # torch fills what it does not initialise only together with deterministic algorithms.
        torch.use_deterministic_algorithms(mode=True)
        try:
            yield checker
        finally:
            torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warning)
