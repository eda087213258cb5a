"""Captures every step of a model on a device without values, and compares rehearsals with steps.

For programs: whatever a step launches that its rehearsal did not is told, kernels of Triton by
name, and torch's operations by name and shapes (the library's products are among them).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mizzen_worker.kernels.gpu.compile_ahead import KernelRequest
from mizzen_worker.model_executor.graphs import Graph, Work

_EMPTY = ("aten.empty", "aten.new_empty")


class _Asked(TorchDispatchMode):
    """Notes operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if not (func.is_view or str(func).startswith(_EMPTY)):
            shapes = [
                (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None
                for value in args
            ]
            self.operations.add(f"{func} {shapes}")
        return func(*args, **(kwargs or {}))


class _NeverReplayed:
    def replay(self) -> None:
        raise AssertionError


class RehearsedGraphs:
    """A ``GraphMaker`` that runs both; ``requests`` grows with every kernel that is noted."""

    def __init__(self, requests: list[KernelRequest]) -> None:
        self._requests = requests
        self.num_captured = 0
        self.missed: list[str] = []

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        with _noted() as rehearsed:
            rehearse()
        num_known = len(self._requests)
        with _noted() as run:
            result = work()
        self.num_captured += 1
        self.missed += [request.name for request in self._requests[num_known:]]
        self.missed += sorted(run - rehearsed)
        return _NeverReplayed(), result


@contextmanager
def _noted() -> Iterator[set[str]]:
    with _Asked() as asked:
        yield asked.operations
