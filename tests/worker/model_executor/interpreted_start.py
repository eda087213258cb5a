"""A start on a GPU where there is none: the factory's own, interpreted, its graphs run again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.worker.model_executor.rerun_graphs import RerunGraphs

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.layers.collective import Collective
from mizzen_worker.model_executor import gpu_factory, model_runner
from mizzen_worker.model_executor.kernel_cache import KernelFolder
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions
from mizzen_worker.model_executor.shard import shard_of
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.sampler.adjustments import adjust
from mizzen_worker.sampler.gpu_choice import choose_on_gpu
from mizzen_worker.sampler.sampler import Sampled
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_MUCH = 1 << 40


class RoomyMeter:
    """A device on which everything fits and nothing grows."""

    def release(self) -> None:
        """Nothing is kept."""

    def free_and_total(self) -> tuple[int, int]:
        return _MUCH, _MUCH

    def held(self) -> int:
        return 0

    def reset_peak(self) -> None:
        """There is none."""

    def peak(self) -> int:
        return 0


def _sample_as_a_gpu_does(
    logits: torch.Tensor, batch: SamplingBatch, instruction_set: str | None = None
) -> Sampled:
    adjust(logits, batch, instruction_set)
    tokens, is_valid = choose_on_gpu(logits, batch)
    return Sampled(tokens=tokens, is_valid=is_valid)


@contextmanager
def cpu_as_gpu() -> Iterator[None]:
    """What the factory asks of CUDA is answered here; nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_factory, "CudaMeter", lambda _: RoomyMeter())
        patch.setattr(gpu_factory, "CudaGraphs", lambda *_: RerunGraphs())
        patch.setattr(gpu_factory, "compute_capability", lambda: 90)
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (_MUCH, _MUCH))
        patch.setattr(KernelFolder, "use", lambda _: None)
        patch.setattr(KernelFolder, "fill", lambda *_, **__: None)
        patch.setattr(model_runner, "INSTRUCTION_SETS", ())
        patch.setattr(model_runner, "sample", _sample_as_a_gpu_does)
        yield


def start_interpreted(
    folder: Path,
    *,
    page_size: int,
    max_slots: int,
    context_length: int,
    uses_graphs: bool,
    collective: Collective | None = None,
) -> ModelRunner:
    """Inside ``cpu_as_gpu``: trial steps, capture and warm-up as on a GPU, in float32."""
    options = RunnerOptions(
        model=folder,
        kv_tokens=4 * context_length,
        page_size=page_size,
        max_slots=max_slots,
        device="cuda",
        compute_type=ComputeType.FLOAT32,
        max_chunk_tokens=context_length,
        uses_graphs=uses_graphs,
    )
    checkpoint = open_checkpoint(folder)
    limits = RunnerLimits(
        max_slots=max_slots,
        num_pages=4 * context_length // page_size,
        page_size=page_size,
        context_length=context_length,
        vocab_size=checkpoint.facts.shape.vocab_size,
    )
    device = torch.device("cpu")
    shard = shard_of(checkpoint.facts, collective)
    start = gpu_factory.gpu_start(options, checkpoint, limits, device, shard)
    return start.run(lambda done, total: None, lambda phase: None)
