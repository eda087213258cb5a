"""Captured steps without a GPU: what was captured is run again as it stands, on the same tensors.

A runner with such graphs goes through everything that one on a GPU does but the capture itself:
buckets, padding, words, kernels (interpreted), the record, tails.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.stage_step import DrawColumns
from mizzen_worker.layers.gpu.step import HeadOutput, HeadResult
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.captured_steps import MakeCapturedSteps
from mizzen_worker.model_executor.decode_graphs import Capture, DecodeGraphs
from mizzen_worker.model_executor.forward import Forward
from mizzen_worker.model_executor.graphs import Graph, Work
from mizzen_worker.model_executor.prefill_graphs import PrefillGraphs
from mizzen_worker.model_executor.step_graphs import StepGraphs
from mizzen_worker.sampler.sampler import sample
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_BLOCK = 16


@dataclass
class _Rerun:
    work: Callable[[], torch.Tensor | None]
    result: torch.Tensor | None
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        again = self.work()
        if again is not None and self.result is not None:
            self.result.copy_(again)


class RerunGraphs:
    """A ``GraphMaker``."""

    def __init__(self) -> None:
        self.graphs: list[_Rerun] = []

    def capture(self, work: Work, rehearse: Work) -> tuple[Graph, torch.Tensor | None]:
        del rehearse
        result = work()
        graph = _Rerun(work, None if result is None else result.clone())
        self.graphs.append(graph)
        return graph, graph.result


class HeadOf:
    """A ``CapturableForward`` of one that gives logits."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def run_head(self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool) -> HeadOutput:
        logits = self._forward.run(batch)
        return HeadOutput(logits=logits) if head is HeadResult.LOGITS else best_of(logits)

    def rehearse_head(
        self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool
    ) -> HeadOutput:
        return self.run_head(batch, head, is_dependent=is_dependent)


def best_of(logits: torch.Tensor) -> HeadOutput:
    """The best of each block, as heads give it: NaN where there is one."""
    missing = -logits.shape[1] % _BLOCK
    padded = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    blocks = padded.view(len(logits), -1, _BLOCK)
    values, columns = blocks.max(-1)
    firsts = torch.arange(blocks.shape[1], device=logits.device) * _BLOCK
    return HeadOutput(best_values=values, best_ids=(columns + firsts).int())


def choose_in_torch(
    logits: torch.Tensor, columns: DrawColumns, positions: torch.Tensor, *, is_dependent: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the sampling kernels mean."""
    is_greedy = (columns.temperatures < torch.finfo(torch.float32).tiny) | (columns.top_k == 1)
    is_plain = (columns.top_k == 0) & (columns.top_p >= 1) & (columns.min_p <= 0)
    batch = SamplingBatch(
        temperatures=columns.temperatures,
        top_k=columns.top_k.long(),
        top_p=columns.top_p,
        min_p=columns.min_p,
        seeds=columns.seeds,
        positions=positions,
        plain_rows=torch.nonzero(~is_greedy & is_plain).flatten(),
        filtered_rows=torch.nonzero(~is_greedy & ~is_plain).flatten(),
    )
    sampled = sample(logits, batch)
    return sampled.tokens, sampled.is_valid


def captured_again(
    forward: Forward, limits: RunnerLimits, maker: RerunGraphs, *, draws: bool = True
) -> MakeCapturedSteps:
    """For ``ModelRunner``."""
    capture = Capture(
        forward=HeadOf(forward), graphs=maker, choose=choose_in_torch if draws else None
    )
    return lambda slots, table: StepGraphs(
        DecodeGraphs(slots, table, limits, capture),
        PrefillGraphs(capture.forward, slots, limits, maker),
    )
