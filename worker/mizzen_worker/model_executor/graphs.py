"""Owns capturing work on the device and running it again; knows nothing of steps."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from mizzen_worker.kernels.gpu.known_kernels import UnknownKernelError, only_known_kernels

logger = logging.getLogger(__name__)

Work = Callable[[], torch.Tensor | None]
"""Launches on the current stream, waits for nothing, and gives its result, if it has one."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queue the work once more, on the very same memory."""
        ...


class GraphMaker(Protocol):
    """Captures work."""

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        """Capture ``work``; gives the graph, and where its result will lie.

        ``rehearse`` runs before: it launches every kernel of ``work`` at least once, so that these
        are compiled and on the device, which they cannot come to in a graph. The result lies there
        until any graph of this maker is replayed.
        """
        ...


class _Memory:
    """Memory of a graph, by its address: the graph's pool owns it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__: dict[str, Any] = tensor.__cuda_array_interface__


class CudaGraphs:
    """CUDA graphs that share one pool of memory: they never run at the same time.

    ``is_any`` says whether something holds on any rank, and asks them all: work that ranks do
    together is run on all of them, or on none.
    """

    def __init__(
        self, device: torch.device, is_any: Callable[[bool], bool] = lambda is_so: is_so
    ) -> None:
        self._device = device
        self._is_any = is_any
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        """See ``GraphMaker``."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            rehearse()
            self._stream.synchronize()
            recorded = self._record_if_known(work)
            if self._is_any(recorded is None) or recorded is None:
                work()
                self._stream.synchronize()
                recorded = self._record(work)
        graph, result = recorded
        current.wait_stream(self._stream)
        if result is None:
            return graph, None
        # Without a tensor that holds it, the memory serves the graphs captured after this one too.
        return graph, torch.as_tensor(_Memory(result), device=self._device)

    def _record_if_known(self, work: Work) -> tuple[Graph, torch.Tensor | None] | None:
        """None where the rehearsal had left a kernel out."""
        try:
            with only_known_kernels():
                return self._record(work)
        except UnknownKernelError as error:
            logger.warning("a step was captured again", extra={"reason": str(error)})
            return None

    def _record(self, work: Work) -> tuple[Graph, torch.Tensor | None]:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = work()
        finally:
            graph.capture_end()
        return graph, result
