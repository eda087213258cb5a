"""Owns captured forwards of steps with few new tokens; knows no slots and chooses no token.

The eager path prepares such a step and samples; only the model in between is one graph launch
instead of hundreds of kernel launches, which take the host longer than the device. A step is padded
to a bucket of tokens and rows. Tokens beyond its own form one row more, of slot 0: their keys and
values go to the sink and are attended to there, so that all numbers stay finite. Rows beyond that
one have no tokens. A step that fits no bucket is left to the eager forward.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.layers.gpu.step import HeadResult
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.captured_steps import ProgressCallback
from mizzen_worker.model_executor.gpu_forward import CapturableForward
from mizzen_worker.model_executor.graph_buckets import prefill_buckets
from mizzen_worker.model_executor.graphs import Graph, GraphMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    graph: Graph
    logits: torch.Tensor


class PrefillGraphs:
    """Graphs by bucket, over tensors that all of them share."""

    def __init__(
        self,
        forward: CapturableForward,
        page_table: torch.Tensor,
        limits: RunnerLimits,
        graphs: GraphMaker,
    ) -> None:
        self._forward = forward
        self._page_table = page_table
        self._limits = limits
        self._maker = graphs
        self._buckets = prefill_buckets(limits.context_length)
        self._graphs: dict[tuple[int, int], _Captured] = {}
        most_tokens = max((tokens for tokens, _ in self._buckets), default=0)
        most_rows = max((rows for _, rows in self._buckets), default=0)
        self._token_ids, self._positions, self._locations = (
            self._zeros(most_tokens, torch.int64) for _ in range(3)
        )
        self._slots, self._sampled = (self._zeros(most_rows, torch.int64) for _ in range(2))
        self._starts = self._zeros(most_rows + 1, torch.int32)
        self._lengths = self._zeros(most_rows, torch.int32)

    @property
    def num_graphs(self) -> int:
        """How many will be captured."""
        return len(self._buckets)

    def capture(self, progress: ProgressCallback) -> None:
        """Capture them all, the largest first; ``progress`` takes (done, all)."""
        for number, bucket in enumerate(reversed(self._buckets)):
            progress(number, len(self._buckets))
            # All tokens are padding's.
            self._starts[1:] = bucket[0]
            self._lengths[0] = bucket[0]

            def work(bucket: tuple[int, int] = bucket) -> torch.Tensor | None:
                batch = self._batch(*bucket)
                head = self._forward.run_head(batch, HeadResult.LOGITS, is_dependent=True)
                return head.logits

            graph, logits = self._maker.capture(work)
            if logits is None:
                message = "the head gave no logits although these were asked for"
                raise RuntimeError(message)
            self._graphs[bucket] = _Captured(graph=graph, logits=logits)

    def run(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Logits of the sampled tokens, as of ``Forward.run``; None where no graph fits."""
        num_sampled = len(batch.sampled_tokens)
        bucket = self._bucket(batch, num_sampled)
        if bucket is None:
            return None
        self._fill(batch, num_sampled, bucket)
        captured = self._graphs[bucket]
        captured.graph.replay()
        return captured.logits[:num_sampled]

    def _bucket(self, batch: ForwardBatch, num_sampled: int) -> tuple[int, int] | None:
        num_tokens, num_rows = batch.num_tokens, batch.num_rows
        if num_tokens == num_rows or not self._graphs:
            return None  # Decode rows alone have graphs of their own.
        for tokens, rows in self._buckets:
            if num_tokens <= tokens and num_rows < rows and num_sampled <= rows:
                return tokens, rows
        return None

    def _fill(self, batch: ForwardBatch, num_sampled: int, bucket: tuple[int, int]) -> None:
        """Few calls: the device waits for them before it begins."""
        num_tokens, num_rows = batch.num_tokens, batch.num_rows
        max_tokens, max_rows = bucket
        longs = (
            (self._token_ids, batch.token_ids),
            (self._positions, batch.positions),
            (self._locations, batch.kv_locations),
            (self._slots, batch.row_slots),
            (self._sampled, batch.sampled_tokens),
        )
        integers = (
            (self._starts, batch.device_row_starts),
            (self._lengths, batch.device_row_lengths),
        )
        for pairs in (longs, integers):
            targets = [target[: len(source)] for target, source in pairs]
            torch._foreach_copy_(targets, [source for _, source in pairs])
        padding = (
            self._locations[num_tokens:max_tokens],
            self._slots[num_rows : num_rows + 1],
            self._sampled[num_sampled:max_rows],
        )
        torch._foreach_zero_([part for part in padding if len(part)])
        self._starts[num_rows + 1 : max_rows + 1].fill_(max_tokens)
        self._lengths[num_rows].fill_(max_tokens - num_tokens)

    def _batch(self, num_tokens: int, num_rows: int) -> ForwardBatch:
        starts = np.zeros(num_rows + 1, dtype=np.int32)
        starts[-1] = num_tokens  # So every row is one of several tokens, for who looks here.
        return ForwardBatch(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            kv_locations=self._locations[:num_tokens],
            page_table=self._page_table,
            row_slots=self._slots[:num_rows],
            sampled_tokens=self._sampled[:num_rows],
            device_row_starts=self._starts[: num_rows + 1],
            device_row_lengths=self._lengths[:num_rows],
            row_starts=starts,
            row_lengths=np.full(num_rows, self._limits.context_length, dtype=np.int32),
            page_size=self._limits.page_size,
        )

    def _zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self._page_table.device)
