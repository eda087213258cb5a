"""Owns captured forwards of steps with few new tokens; knows no slots and chooses no token.

The eager path packs such a step and samples. In between the model is one graph launch instead of
hundreds of kernel launches, which take the host longer than the device; before it, one kernel makes
tensors of the packed words, so little stands between a request and its prefill. A step is padded
to a bucket of tokens and rows, where that pays. Tokens beyond its own form one row more, of slot 0:
their keys and values go to the sink and are attended to there, so that all numbers stay finite.
Rows beyond that one have no tokens. A step that fits no bucket is left to the eager forward.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.stage_prefill import PrefillTensors, PrefillWords, stage_prefill
from mizzen_worker.layers.gpu.step import HeadResult
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.device_link import StepPack
from mizzen_worker.model_executor.gpu_forward import CapturableForward
from mizzen_worker.model_executor.graph_buckets import is_worth_padding, prefill_buckets
from mizzen_worker.model_executor.graphs import Graph, GraphMaker
from mizzen_worker.model_executor.pass_inputs import PassInputs
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.weights.progress import ProgressCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    graph: Graph
    logits: torch.Tensor


class PrefillGraphs:
    """Graphs by bucket, over tensors that all of them share."""

    def __init__(
        self,
        forward: CapturableForward,
        slots: SlotState,
        limits: RunnerLimits,
        graphs: GraphMaker,
        longest_padded: int | None = None,
    ) -> None:
        """``longest_padded``: see ``graph_buckets``; None where padding costs nothing."""
        self._forward = forward
        self._slots = slots
        self._limits = limits
        self._maker = graphs
        self._longest = longest_padded
        self._buckets = prefill_buckets(limits.context_length, longest_padded)
        self._graphs: dict[tuple[int, int], _Captured] = {}
        most_tokens = max((tokens for tokens, _ in self._buckets), default=0)
        most_rows = max((rows for _, rows in self._buckets), default=0)
        self._tensors = PrefillTensors(
            token_ids=self._zeros(most_tokens, torch.int64),
            positions=self._zeros(most_tokens, torch.int64),
            kv_locations=self._zeros(most_tokens, torch.int64),
            row_slots=self._zeros(most_rows, torch.int64),
            wanted=self._zeros(most_rows, torch.int64),
            row_starts=self._zeros(most_rows + 1, torch.int32),
            row_lengths=self._zeros(most_rows, torch.int32),
        )

    @property
    def num_graphs(self) -> int:
        """How many will be captured."""
        return len(self._buckets)

    def capture(self, progress: ProgressCallback) -> None:
        """Capture them all, the largest first; ``progress`` takes (done, all)."""
        for number, bucket in enumerate(reversed(self._buckets)):
            progress(number, len(self._buckets))
            self._stage(_only_padding(self._zeros(1, torch.int32)), bucket)
            graph, logits = self._maker.capture(
                partial(self._run, bucket), partial(self._rehearse, bucket)
            )
            if logits is None:
                message = "the head gave no logits although these were asked for"
                raise RuntimeError(message)
            self._graphs[bucket] = _Captured(graph=graph, logits=logits)

    def _run(self, bucket: tuple[int, int]) -> torch.Tensor | None:
        batch = self._batch(*bucket)
        return self._forward.run_head(batch, HeadResult.LOGITS, is_dependent=True).logits

    def _rehearse(self, bucket: tuple[int, int]) -> torch.Tensor | None:
        batch = self._batch(*bucket)
        return self._forward.rehearse_head(batch, HeadResult.LOGITS, is_dependent=True).logits

    def run(self, inputs: PassInputs, pack: StepPack, words: torch.Tensor) -> torch.Tensor | None:
        """See ``CapturedSteps.run_pass``."""
        bucket = self._bucket(inputs)
        if bucket is None:
            return None
        self._stage(words_of(inputs, pack, words), bucket)
        captured = self._graphs[bucket]
        captured.graph.replay()
        return captured.logits[: inputs.num_wanted]

    def _bucket(self, inputs: PassInputs) -> tuple[int, int] | None:
        num_tokens, num_rows = int(inputs.row_starts[-1]), len(inputs.row_lengths)
        if num_tokens == num_rows or not self._graphs:
            return None  # Decode rows alone have graphs of their own.
        for tokens, rows in self._buckets:
            if num_tokens <= tokens and num_rows < rows and inputs.num_wanted <= rows:
                is_worth = is_worth_padding(num_tokens, tokens, self._longest)
                return (tokens, rows) if is_worth else None
        return None

    def _stage(self, words: PrefillWords, bucket: tuple[int, int]) -> None:
        slots = self._slots
        stage_prefill(
            words,
            slots.page_table,
            slots.last_tokens,
            slots.finished,
            self._part(*bucket),
            page_size=self._limits.page_size,
        )

    def _part(self, num_tokens: int, num_rows: int) -> PrefillTensors:
        """What a bucket has of the tensors."""
        every = self._tensors
        return PrefillTensors(
            token_ids=every.token_ids[:num_tokens],
            positions=every.positions[:num_tokens],
            kv_locations=every.kv_locations[:num_tokens],
            row_slots=every.row_slots[:num_rows],
            wanted=every.wanted[:num_rows],
            row_starts=every.row_starts[: num_rows + 1],
            row_lengths=every.row_lengths[:num_rows],
        )

    def _batch(self, num_tokens: int, num_rows: int) -> ForwardBatch:
        starts = np.zeros(num_rows + 1, dtype=np.int32)
        starts[-1] = num_tokens  # So every row is one of several tokens, for who looks here.
        tensors = self._part(num_tokens, num_rows)
        return ForwardBatch(
            token_ids=tensors.token_ids,
            positions=tensors.positions,
            kv_locations=tensors.kv_locations,
            page_table=self._slots.page_table,
            row_slots=tensors.row_slots,
            sampled_tokens=tensors.wanted,
            device_row_starts=tensors.row_starts,
            device_row_lengths=tensors.row_lengths,
            row_starts=starts,
            row_lengths=np.full(num_rows, self._limits.context_length, dtype=np.int32),
            page_size=self._limits.page_size,
        )

    def _zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self._slots.page_table.device)


def words_of(inputs: PassInputs, pack: StepPack, words: torch.Tensor) -> PrefillWords:
    """Where a pass's numbers lie in its step's words."""
    offsets, prefix = pack.offsets(), inputs.prefix
    return PrefillWords(
        words=words,
        num_tokens=int(inputs.row_starts[-1]),
        num_rows=len(inputs.row_lengths),
        num_wanted=inputs.num_wanted,
        num_entered=pack.size("entered_slots"),
        num_writes=pack.size("write_slots"),
        token_ids=offsets[prefix + "token_ids"],
        token_slots=offsets[prefix + "token_slots"],
        positions=offsets[prefix + "positions"],
        row_slots=offsets[prefix + "row_slots"],
        row_starts=offsets[prefix + "row_starts"],
        row_lengths=offsets[prefix + "row_lengths"],
        wanted=offsets[prefix + "logit_tokens"],
        entered=offsets.get("entered_slots", 0),
        write_slots=offsets.get("write_slots", 0),
        write_columns=offsets.get("write_columns", 0),
        write_pages=offsets.get("write_pages", 0),
    )


def _only_padding(words: torch.Tensor) -> PrefillWords:
    """A step of no tokens; ``words`` [1] is its one start, 0."""
    return PrefillWords(
        words=words,
        num_tokens=0,
        num_rows=0,
        num_wanted=0,
        num_entered=0,
        num_writes=0,
        token_ids=0,
        token_slots=0,
        positions=0,
        row_slots=0,
        row_starts=0,
        row_lengths=0,
        wanted=0,
        entered=0,
        write_slots=0,
        write_columns=0,
        write_pages=0,
    )
