"""Owns finding out how many KV pages a GPU has room for, by running the largest step once.

Owns no arithmetic (``memory/plan.py``) and no shape of a step (``largest_step.py``). The model is
there already and nothing else: a pool that holds just that step is made for it and dropped again.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from mizzen_worker.contracts.batch import Runner, RunnerLimits
from mizzen_worker.contracts.errors import DeviceError, ModelLoadError
from mizzen_worker.memory.plan import MemoryUse, PageSizes, choose_num_pages
from mizzen_worker.model_executor.largest_step import trial_steps
from mizzen_worker.model_executor.memory_estimate import GRAPH_BYTES

logger = logging.getLogger(__name__)

RunnerMaker = Callable[[RunnerLimits], Runner]
"""Makes a runner with a pool of its own."""


class MemoryMeter(Protocol):
    """Reads the memory of one device; bytes."""

    def release(self) -> None:
        """Give what no tensor holds back to the device."""
        ...

    def free_and_total(self) -> tuple[int, int]:
        """What the device has left for anybody, and what it has in all."""
        ...

    def held(self) -> int:
        """What this process holds for tensors, gaps between them included."""
        ...

    def reset_peak(self) -> None:
        """Count the peak from here."""
        ...

    def peak(self) -> int:
        """The most that ``held`` has been."""
        ...


class CudaMeter:
    """Implements ``MemoryMeter`` by torch's allocator and the driver."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def release(self) -> None:
        """See ``MemoryMeter``."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def free_and_total(self) -> tuple[int, int]:
        """See ``MemoryMeter``."""
        return torch.cuda.mem_get_info(self._device)

    def held(self) -> int:
        """See ``MemoryMeter``."""
        return torch.cuda.memory_reserved(self._device)

    def reset_peak(self) -> None:
        """See ``MemoryMeter``."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """See ``MemoryMeter``."""
        return torch.cuda.max_memory_reserved(self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """``kv_tokens`` None takes all that is left; ``num_graphs`` 0 where none will be captured.

    ``captured_tokens``: prompt tokens of the largest step whose forward will be captured.
    """

    limits: RunnerLimits
    max_new_tokens: int
    page_bytes: int
    kv_tokens: int | None
    fraction: float
    num_graphs: int
    captured_tokens: int = 0


def size_pool(request: SizingRequest, meter: MemoryMeter, make_runner: RunnerMaker) -> int:
    """Pages of the pool, the sink not counted.

    Raises ``ConfigError`` or ``ModelLoadError`` with the sum, see ``choose_num_pages``.
    """
    limits = request.limits
    step_bytes, decode_bytes = _measure(request, meter, make_runner)
    # The trial's runner and pool are garbage, which may lie in cycles.
    gc.collect()
    meter.release()
    free_bytes, total_bytes = meter.free_and_total()
    weights_bytes = meter.held()
    use = MemoryUse(
        total_bytes=total_bytes,
        fraction=request.fraction,
        weights_bytes=weights_bytes,
        other_bytes=max(0, total_bytes - free_bytes - weights_bytes),
        step_bytes=step_bytes,
        graphs_bytes=_graphs_bytes(request, step_bytes, decode_bytes),
    )
    page = PageSizes(page_size=limits.page_size, page_bytes=request.page_bytes)
    num_pages = choose_num_pages(use, page, request.kv_tokens)
    logger.info(
        "KV memory is sized",
        extra={"kv_tokens": num_pages * limits.page_size, "sum": use.describe()},
    )
    return num_pages


def _graphs_bytes(request: SizingRequest, step_bytes: int, decode_bytes: int) -> int:
    """Graphs have memory of their own, as much as the largest of them takes."""
    if not request.num_graphs:
        return 0
    share = min(1.0, request.captured_tokens / request.max_new_tokens)
    return max(decode_bytes, int(step_bytes * share)) + request.num_graphs * GRAPH_BYTES


def _measure(
    request: SizingRequest, meter: MemoryMeter, make_runner: RunnerMaker
) -> tuple[int, int]:
    """Most bytes that the largest step, and a decode step, take beside weights and pool."""
    steps = trial_steps(request.limits, max_new_tokens=request.max_new_tokens)
    pool_bytes = (steps.num_pages + 1) * request.page_bytes
    meter.release()
    before = meter.held()
    meter.reset_peak()
    try:
        runner = make_runner(replace(request.limits, num_pages=steps.num_pages))
        runner.launch(steps.largest).settle()
        largest = meter.peak() - before - pool_bytes
        meter.release()
        idle = meter.held()
        meter.reset_peak()
        runner.launch(steps.decode).settle()
        return max(0, largest), max(0, meter.peak() - idle)
    except (DeviceError, torch.OutOfMemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        message = (
            f"the largest step ({request.max_new_tokens} prompt tokens, {request.limits.max_slots}"
            f" rows) does not fit beside the weights: {error}; lower --max-chunk-tokens or"
            " --max-running-requests, or take a GPU with more memory"
        )
        raise ModelLoadError(message) from error


def _is_out_of_memory(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(error, torch.OutOfMemoryError) or isinstance(cause, torch.OutOfMemoryError)
