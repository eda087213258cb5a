"""Owns the order in which a runner comes to life on a GPU; builds none of its parts.

Kernels are compiled, unless they were before; weights are loaded; memory is measured and the pool
made; decode steps are captured; and every other kernel has run once before the first request.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from mizzen_worker.contracts.batch import RunnerLimits, ScheduleBatch
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.model_executor.forward import Forward
from mizzen_worker.model_executor.kernel_cache import KernelFolder
from mizzen_worker.model_executor.largest_step import trial_steps
from mizzen_worker.model_executor.load_phase import LoadPhase, PhaseCallback, PhaseClock
from mizzen_worker.model_executor.memory_profile import MemoryMeter, SizingRequest, size_pool
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.valueless import VALUELESS
from mizzen_worker.model_executor.warm_up import warm_up_steps
from mizzen_worker.model_executor.weights.progress import ProgressCallback

logger = logging.getLogger(__name__)

ForwardMaker = Callable[[DevicePool], Forward]
"""Puts loaded weights to work on a pool."""


def _own(number: int) -> int:
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStart:
    """What a start needs.

    ``load`` reads the weights to a device and ``make_runner`` gives a runner a pool of its own;
    both are also called for ``VALUELESS``. ``facts`` tells apart models and limits that launch
    different kernels.
    """

    device: torch.device
    capability: int
    sizing: SizingRequest
    meter: MemoryMeter
    folder: KernelFolder
    facts: str
    load: Callable[[torch.device, ProgressCallback], ForwardMaker]
    make_runner: Callable[[ForwardMaker, RunnerLimits, torch.device], ModelRunner]
    uncaptured_tokens: int | None = None
    """See ``warm_up_steps``."""
    least: Callable[[int], int] = _own
    """The least of all ranks' numbers, asked of every rank: pools are equal."""

    def run(self, progress: ProgressCallback, enter: PhaseCallback) -> ModelRunner:
        """Do it all; ``enter`` and ``progress`` are called from this thread."""
        clock = PhaseClock(enter, clock=time.monotonic)
        clock.enter(LoadPhase.KERNELS)
        self.folder.use()
        self.folder.fill(
            self.run_without_values,
            facts=self.facts,
            capability=self.capability,
            progress=progress,
        )
        clock.enter(LoadPhase.WEIGHTS)
        make_forward = self.load(self.device, progress)
        clock.enter(LoadPhase.MEMORY)

        def make(limits: RunnerLimits) -> ModelRunner:
            return self.make_runner(make_forward, limits, self.device)

        num_pages = self.least(size_pool(self.sizing, self.meter, make))
        runner = make(replace(self.sizing.limits, num_pages=num_pages))
        clock.enter(LoadPhase.GRAPHS)
        runner.warm_up(progress)
        self.meter.release()  # What ran before it was captured left memory behind.
        clock.enter(LoadPhase.WARM_UP)
        self._run_all(runner)
        logger.info("ready on the GPU", extra={"seconds": clock.finish()})
        return runner

    def run_without_values(self) -> None:
        """Launch on tensors that hold nothing whatever ``run`` and requests will launch."""
        sizing = self.sizing
        steps = trial_steps(sizing.limits, max_new_tokens=sizing.max_new_tokens)
        limits = replace(sizing.limits, num_pages=steps.num_pages)
        make_forward = self.load(VALUELESS, _ignore)
        runner = self.make_runner(make_forward, limits, VALUELESS)
        runner.launch(steps.largest)
        runner.launch(steps.decode)
        for step in self._warm_up_steps(limits):
            runner.launch(step)
        runner.warm_up(_ignore)

    def _run_all(self, runner: ModelRunner) -> None:
        for step in self._warm_up_steps(runner.limits):
            runner.launch(step).settle()

    def _warm_up_steps(self, limits: RunnerLimits) -> Iterator[ScheduleBatch]:
        return warm_up_steps(
            limits,
            max_new_tokens=self.sizing.max_new_tokens,
            uncaptured_tokens=self.uncaptured_tokens,
        )


def _ignore(num_done: int, num_total: int) -> None:
    del num_done, num_total
