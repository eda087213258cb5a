"""Owns captured decode steps: which there are, filling in what a step is, and launching it.

A graph holds a whole step of up to so many rows: staging the host's words, the model, the choice of
tokens and their record. So the host writes a few hundred words and makes one call. Rows that fill
a graph up are of slot 0, which has ended, and change nothing. Steps keep their order with what is
launched beside them, because everything is on the device's current stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from mizzen_worker.contracts.batch import (
    DecodeRows,
    Int32Array,
    PageWrite,
    PrefixGroup,
    RunnerLimits,
    ScheduleBatch,
)
from mizzen_worker.kernels.gpu.record_step import RecordTensors, record_best, record_chosen
from mizzen_worker.kernels.gpu.stage_step import (
    HEADER,
    DrawColumns,
    SlotTensors,
    StagedDraws,
    StagedRows,
    StagedShares,
    StepExtras,
    stage_step,
)
from mizzen_worker.layers.gpu.step import HeadOutput, HeadResult
from mizzen_worker.memory.forward_batch import ForwardBatch, SharedPrefixes
from mizzen_worker.model_executor.captured_steps import LaunchedGraph
from mizzen_worker.model_executor.gpu_forward import CapturableForward
from mizzen_worker.model_executor.graph_buckets import (
    CAPTURED_TAILS,
    decode_buckets,
    has_shared_graph,
)
from mizzen_worker.model_executor.graphs import Graph, GraphMaker
from mizzen_worker.model_executor.shared_prefix_items import SharedWork, shared_work_items
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.slot_table import SlotTable
from mizzen_worker.model_executor.step_ring import StepRing
from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.model_executor.weights.progress import ProgressCallback

_WRITES_PER_ROW = 2
_SPARE_WRITES = 64
_MAX_ITEMS = 128
"""Of shared prefixes: the others' rows read their pages themselves."""


class ChooseTokens(Protocol):
    """Chooses what ``sampler.sample`` would, from parameters on the device; waits for nothing."""

    def __call__(
        self,
        logits: torch.Tensor,
        columns: DrawColumns,
        positions: torch.Tensor,
        *,
        is_dependent: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, vocab] float32 logits to tokens [n] int64 and their validity [n] bool.

        ``positions`` [n] int64 are those of the tokens to choose.
        """
        ...


class _RunHead(Protocol):
    """Of a ``CapturableForward``: ``run_head`` or ``rehearse_head``."""

    def __call__(self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool) -> HeadOutput:
        """Launch a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """With what steps are captured; ``choose`` None: there is no tail DRAWN, but LOGITS instead.

    ``max_rows``: steps of more rows are rare, and not captured; None: as many as there are slots.
    """

    forward: CapturableForward
    graphs: GraphMaker
    choose: ChooseTokens | None = None
    max_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One captured step. ``is_shared``: prefixes that rows share are read once for all of them."""

    num_rows: int
    tail: Tail
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    graph: Graph
    logits: torch.Tensor | None


class DecodeGraphs:
    """Graphs by kind, over tensors that all of them share."""

    def __init__(
        self,
        slots: SlotState,
        table: SlotTable,
        limits: RunnerLimits,
        capture: Capture,
    ) -> None:
        device = slots.finished.device
        self._forward = capture.forward
        self._maker = capture.graphs
        self._slots = slots
        self._table = table
        self._limits = limits
        self._choose = capture.choose
        self._sizes = decode_buckets(min(limits.max_slots, capture.max_rows or limits.max_slots))
        self._bucket_by_rows = np.searchsorted(self._sizes, np.arange(self._sizes[-1] + 1))
        most = self._sizes[-1]
        self._ring = make_ring(most, device)
        self._rows = StagedRows(
            **{
                name: torch.zeros(most, dtype=torch.int64, device=device)
                for name in ("token_ids", "positions", "kv_locations", "row_slots")
            },
            row_lengths=torch.zeros(most, dtype=torch.int32, device=device),
            current=torch.zeros(2, dtype=torch.int32, device=device),
        )
        self._draws = StagedDraws(
            by_slot=_slot_columns(table),
            by_row=_row_columns(most, device),
            positions=torch.zeros(most, dtype=torch.int64, device=device),
        )
        self._shares = StagedShares(
            num_items=torch.zeros(1, dtype=torch.int32, device=device),
            items=torch.zeros(_MAX_ITEMS, 3, dtype=torch.int32, device=device),
            row_tokens=torch.zeros(most, dtype=torch.int32, device=device),
        )
        self._last_work: tuple[tuple[PrefixGroup, ...], int, SharedWork] | None = None
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._tokens = torch.arange(most, dtype=torch.int64, device=device)
        self._graphs: dict[_Kind, _Captured] = {}

    @property
    def num_graphs(self) -> int:
        """How many will be captured."""
        return len(self._kinds())

    def _kinds(self) -> list[_Kind]:
        tails = (Tail.BEST, Tail.LOGITS) if self._choose is None else CAPTURED_TAILS
        return [
            _Kind(num_rows=size, tail=tail, is_shared=is_shared)
            for size in reversed(self._sizes)
            for tail in tails
            for is_shared in (False, True)
            if not is_shared or has_shared_graph(size, tail)
        ]

    def capture(self, progress: ProgressCallback) -> None:
        """Capture them all, the largest first: the others then find memory enough."""
        kinds = self._kinds()
        for number, kind in enumerate(kinds):
            progress(number, len(kinds))
            graph, logits = self._maker.capture(
                partial(self._run, kind, self._forward.run_head),
                partial(self._run, kind, self._forward.rehearse_head),
            )
            self._graphs[kind] = _Captured(graph=graph, logits=logits)
        self._ring.restart()

    def can_launch(self, batch: ScheduleBatch) -> bool:
        """See ``CapturedSteps``: decode rows alone, and no more than there is room for."""
        if batch.extends or batch.slot_inits or not len(batch.decodes.slots) or not self._graphs:
            return False
        num_writes = len(batch.page_writes)
        if num_writes:
            num_writes = sum([len(write.pages) for write in batch.page_writes])
        is_small = len(batch.decodes.slots) <= self._sizes[-1]
        return is_small and num_writes <= self._ring.words.max_writes

    def launch(self, batch: ScheduleBatch, tail: Tail) -> LaunchedGraph:
        """See ``CapturedSteps``."""
        if tail is Tail.DRAWN and self._choose is None:
            tail = Tail.LOGITS
        decodes = batch.decodes
        num_rows = len(decodes.slots)
        size = self._sizes[self._bucket_by_rows[num_rows]]
        kind = _Kind(
            num_rows=size,
            tail=tail,
            is_shared=bool(decodes.groups) and has_shared_graph(size, tail),
        )
        words = self._ring.vacant_words()
        self._write(words, batch, size)
        if kind.is_shared:
            self._write_shares(words, decodes, size)
        captured = self._graphs[kind]
        captured.graph.replay()
        logits = None if captured.logits is None else captured.logits[:num_rows]
        return LaunchedGraph(outcome=self._ring.launched(num_rows), logits=logits)

    def _write(self, words: Int32Array, batch: ScheduleBatch, size: int) -> None:
        num_rows, layout = len(batch.decodes.slots), self._ring.words
        words[0] = num_rows
        words[1] = 0
        columns = ((HEADER, batch.decodes.slots), (HEADER + layout.max_rows, batch.decodes.starts))
        for first, values in columns:
            words[first : first + num_rows] = values
            words[first + num_rows : first + size] = 0
        if batch.page_writes:
            room = words[layout.first_write : layout.first_item]
            words[1] = _write_pages(room.reshape(3, -1), batch.page_writes)

    def _write_shares(self, words: Int32Array, decodes: DecodeRows, size: int) -> None:
        num_rows, layout = len(decodes.slots), self._ring.words
        last = self._last_work
        if last is not None and last[1] == num_rows and last[0] == decodes.groups:
            work = last[2]
        else:
            work = shared_work_items(decodes.groups, num_rows, layout.max_items)
            self._last_work = (decodes.groups, num_rows, work)
        words[2] = work.num_items
        first = HEADER + 2 * layout.max_rows
        words[first : first + num_rows] = work.row_tokens
        words[first + num_rows : first + size] = 0
        words[layout.first_item : layout.num_words] = work.items.ravel()

    def _run(self, kind: _Kind, run_head: _RunHead) -> torch.Tensor | None:
        """The work of one step, captured or rehearsed."""
        slots, size, tail = self._slots, kind.num_rows, kind.tail
        stage_step(
            self._ring.words,
            SlotTensors(
                page_table=slots.page_table,
                last_tokens=slots.last_tokens,
                finished=slots.finished,
            ),
            self._rows,
            StepExtras(
                draws=self._draws if tail is Tail.DRAWN else None,
                shares=self._shares if kind.is_shared else None,
            ),
            num_rows=size,
            page_size=self._limits.page_size,
        )
        head = HeadResult.BEST if tail is Tail.BEST else HeadResult.LOGITS
        output = run_head(self._batch(kind), head, is_dependent=True)
        if tail is Tail.LOGITS:
            return output.logits
        if output.best_values is not None and output.best_ids is not None:
            record_best(output.best_values, output.best_ids, self._record(), is_dependent=True)
        elif output.logits is not None and self._choose is not None:
            positions = self._draws.positions[:size]
            columns = _first(self._draws.by_row, size)
            tokens, is_valid = self._choose(output.logits, columns, positions, is_dependent=True)
            record_chosen(tokens, is_valid, self._record(), is_dependent=True)
        return None

    def _batch(self, kind: _Kind) -> ForwardBatch:
        rows, shares, size = self._rows, self._shares, kind.num_rows
        prefixes = SharedPrefixes(
            first_row=0,
            num_items=shares.num_items,
            items=shares.items,
            row_tokens=shares.row_tokens[:size],
        )
        return ForwardBatch(
            token_ids=rows.token_ids[:size],
            positions=rows.positions[:size],
            kv_locations=rows.kv_locations[:size],
            page_table=self._slots.page_table,
            row_slots=rows.row_slots[:size],
            sampled_tokens=self._tokens[:size],
            device_row_starts=self._starts[: size + 1],
            device_row_lengths=rows.row_lengths[:size],
            row_starts=np.arange(size + 1, dtype=np.int32),
            row_lengths=np.full(size, self._limits.context_length, dtype=np.int32),
            page_size=self._limits.page_size,
            is_all_sampled=True,
            shared_prefixes=prefixes if kind.is_shared else None,
        )

    def _record(self) -> RecordTensors:
        return RecordTensors(
            row_slots=self._rows.row_slots,
            positions=self._rows.positions,
            current=self._rows.current,
            finished=self._slots.finished,
            last_tokens=self._slots.last_tokens,
            max_tokens=self._table.max_tokens,
            stop_ids=self._table.stop_ids,
            outcome=self._ring.outcome,
        )


def _slot_columns(table: SlotTable) -> DrawColumns:
    return DrawColumns(
        temperatures=table.temperatures,
        top_p=table.top_p,
        min_p=table.min_p,
        top_k=table.top_k,
        seeds=table.seeds,
    )


def _row_columns(num_rows: int, device: torch.device) -> DrawColumns:
    reals = [torch.zeros(num_rows, dtype=torch.float32, device=device) for _ in range(3)]
    return DrawColumns(
        temperatures=reals[0],
        top_p=reals[1],
        min_p=reals[2],
        top_k=torch.zeros(num_rows, dtype=torch.int32, device=device),
        seeds=torch.zeros(num_rows, dtype=torch.int64, device=device),
    )


def _first(columns: DrawColumns, num_rows: int) -> DrawColumns:
    return DrawColumns(
        temperatures=columns.temperatures[:num_rows],
        top_p=columns.top_p[:num_rows],
        min_p=columns.min_p[:num_rows],
        top_k=columns.top_k[:num_rows],
        seeds=columns.seeds[:num_rows],
    )


def make_ring(max_rows: int, device: torch.device) -> StepRing:
    """Page-locked where the device is a GPU; on a CPU it is the device's own memory."""
    is_gpu = device.type == "cuda"
    return StepRing(
        max_rows=max_rows,
        max_writes=_WRITES_PER_ROW * max_rows + _SPARE_WRITES,
        max_items=_MAX_ITEMS,
        device=device,
        make_event=torch.cuda.Event if is_gpu else _NoEvent,
        is_pinned=is_gpu,
    )


class _NoEvent:
    """Work on a CPU is done when it is queued."""

    def record(self) -> None:
        """See ``CopyEvent``."""

    def synchronize(self) -> None:
        """See ``CopyEvent``."""


def _write_pages(table: Int32Array, writes: Sequence[PageWrite]) -> int:
    """Slots, columns and pages of all writes, one per page, into ``table`` [3, room]."""
    pages = np.concatenate([write.pages for write in writes])
    num_pages = len(pages)
    slots: list[int] | Int32Array = [write.slot for write in writes]
    columns: list[int] | Int32Array = [write.first_page for write in writes]
    if num_pages != len(writes):
        counts = [len(write.pages) for write in writes]
        slots = np.repeat(np.array(slots, dtype=np.int32), counts)
        firsts = np.repeat(np.array(columns) - np.cumsum([0, *counts[:-1]]), counts)
        columns = np.arange(num_pages, dtype=np.int32) + firsts
    table[0, :num_pages] = slots
    table[1, :num_pages] = columns
    table[2, :num_pages] = pages
    return num_pages
