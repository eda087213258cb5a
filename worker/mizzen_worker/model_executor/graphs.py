"""Owns capturing work on the device and running it again; knows nothing of steps."""

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queue the work once more, on the very same memory."""
        ...


class GraphMaker(Protocol):
    """Captures work."""

    def capture(self, work: Callable[[], torch.Tensor | None]) -> tuple[Graph, torch.Tensor | None]:
        """Run ``work``, then capture it; gives the graph, and where its result will lie.

        The result lies there until any graph of this maker is replayed.
        """
        ...


class _Memory:
    """Memory of a graph, by its address: the graph's pool owns it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.__cuda_array_interface__: dict[str, Any] = tensor.__cuda_array_interface__


class CudaGraphs:
    """CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, work: Callable[[], torch.Tensor | None]) -> tuple[Graph, torch.Tensor | None]:
        """See ``GraphMaker``."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            work()  # Compiles kernels and lets libraries set themselves up, which no graph can.
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        if result is None:
            return graph, None
        # Without a tensor that holds it, the memory serves the graphs captured after this one too.
        return graph, torch.as_tensor(_Memory(result), device=self._device)
