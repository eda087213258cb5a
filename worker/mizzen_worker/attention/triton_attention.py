"""Owns attention on a GPU through the Triton kernels; the kernels' rules are theirs.

The last rows of a step, those with one new token, go through the decode kernels; rows before them
through ``extend``, a backend of its own. Which rows these are is read off host arrays only, and
grids follow from bounds on the host, so a decode step can be captured in a CUDA graph and replayed
with other rows. Where rows share their first pages (``ForwardBatch.shared_prefixes``), these are
read once for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mizzen_worker.attention.base import AttentionBackend, StepAttention
from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile, shared_tile
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import (
    DecodeTile,
    SharedPart,
    decode_attention,
    num_parts,
)
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, shared_prefix_attention
from mizzen_worker.memory.device_pool import DevicePool, KvScale
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS, ForwardBatch, SharedPrefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """What a model's attention adds to scores: see ``ScoreRule``; the same in all layers.

    ``sinks`` are by layer, none where it is empty. ``scale`` None is head_dim ** -0.5.
    """

    scale: float | None = None
    soft_cap: float = 0.0
    sinks: Sequence[torch.Tensor] = ()

    def of(self, layer: int, head_dim: int, window: int | None, stored: KvScale) -> ScoreRule:
        """The rule of one layer; ``stored``: of its keys and values."""
        return ScoreRule(
            scale=head_dim**-0.5 if self.scale is None else self.scale,
            window=window,
            soft_cap=self.soft_cap,
            sinks=self.sinks[layer] if self.sinks else None,
            key_scale=stored.key,
            value_scale=stored.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedPlan:
    """How and where to the shared prefixes of a step are computed; the layers share the room."""

    prefixes: SharedPrefixes
    tile: SharedTile
    part: SharedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodePlan:
    """How all layers of one window run."""

    tile: DecodeTile
    shared: _SharedPlan | None


class _DecodeStep:
    """The rows of a batch from ``first_row`` on, each with one new token."""

    def __init__(
        self,
        pool: DevicePool,
        rule: AttentionRule,
        batch: ForwardBatch,
        first_row: int,
        *,
        is_dependent: bool,
    ) -> None:
        self._pool = pool
        self._rule = rule
        self._prefixes = batch.shared_prefixes
        self._launch = dependent() if is_dependent else PLAIN
        self._max_length = int(batch.row_lengths[first_row:].max())
        self._rows = PagedRows(
            page_table=batch.page_table,
            row_slots=batch.row_slots[first_row:],
            row_lengths=batch.device_row_lengths[first_row:],
            page_size=batch.page_size,
        )
        self._plans: dict[int | None, _DecodePlan] = {}

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        if window not in self._plans:
            self._plans[window] = self._plan(queries, keys.shape[1], window)
        plan = self._plans[window]
        rule = self._rule.of(layer, queries.shape[2], window, self._pool.scale(layer))
        if plan.shared is not None:
            shared_prefix_attention(
                queries,
                keys,
                values,
                self._rows,
                rule,
                items=plan.shared.prefixes.items,
                num_items=plan.shared.prefixes.num_items,
                item_rows=SHARED_ITEM_ROWS,
                tile=plan.shared.tile,
                part=plan.shared.part,
                launch=self._launch,
            )
        return decode_attention(
            queries,
            keys,
            values,
            self._rows,
            rule,
            tile=plan.tile,
            launch=self._launch,
            shared=None if plan.shared is None else plan.shared.part,
            out=out,
        )

    def _plan(self, queries: torch.Tensor, num_kv_heads: int, window: int | None) -> _DecodePlan:
        num_rows, num_heads, head_dim = queries.shape
        work = DecodeWork(
            num_rows=num_rows,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            row_bytes=head_dim * queries.element_size(),
            max_length=self._max_length if window is None else min(self._max_length, window),
        )
        prefixes = self._prefixes
        own = decode_tile(work, has_shared=prefixes is not None)
        if prefixes is None:
            return _DecodePlan(tile=own, shared=None)
        tile = shared_tile(work)
        parts = num_parts(own, tile.splits)
        part = SharedPart(
            means=queries.new_empty(num_rows, num_heads, parts, head_dim),
            log_sums=queries.new_empty(num_rows, num_heads, parts, dtype=torch.float32),
            row_tokens=prefixes.row_tokens,
            splits=tile.splits,
        )
        return _DecodePlan(tile=own, shared=_SharedPlan(prefixes=prefixes, tile=tile, part=part))


class _MixedStep:
    """Rows of known tokens first, then rows with one new token."""

    def __init__(self, extend: StepAttention, decode: _DecodeStep, num_extend_tokens: int) -> None:
        self._extend = extend
        self._decode = decode
        self._num_extend_tokens = num_extend_tokens

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        cut = self._num_extend_tokens
        if out is None:
            out = queries.new_empty(len(queries), queries.shape[1] * queries.shape[2])
        self._extend.attend(layer, queries[:cut], window, out[:cut])
        self._decode.attend(layer, queries[cut:], window, out[cut:])
        return out


class TritonAttention:
    """Decode rows by kernel, the others by ``extend``."""

    def __init__(
        self, pool: DevicePool, extend: AttentionBackend, rule: AttentionRule | None = None
    ) -> None:
        """``rule`` None: scores are scaled by head_dim ** -0.5 and nothing else."""
        self._pool = pool
        self._extend = extend
        self._rule = rule or AttentionRule()

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> StepAttention:
        """See ``AttentionBackend``. ``is_dependent``: launch with PDL where there is such a thing.

        Then slots, lengths, page table and shared prefixes must be complete before the last launch
        of the chain that is not dependent.
        """
        first_row = _first_decode_row(batch)
        if first_row == batch.num_rows:
            return self._extend.begin(batch)
        decode = _DecodeStep(self._pool, self._rule, batch, first_row, is_dependent=is_dependent)
        if first_row == 0:
            return decode
        extend = self._extend.begin(_first_rows(batch, first_row))
        return _MixedStep(extend, decode, int(batch.row_starts[first_row]))


def _first_decode_row(batch: ForwardBatch) -> int:
    """Rows from here on have one new token each; all rows may be before it."""
    if batch.shared_prefixes is not None:
        return batch.shared_prefixes.first_row
    longer = np.flatnonzero(np.diff(batch.row_starts) > 1)
    return int(longer[-1]) + 1 if len(longer) else 0


def _first_rows(batch: ForwardBatch, num_rows: int) -> ForwardBatch:
    """The first rows of a batch, as a batch of their own."""
    num_tokens = int(batch.row_starts[num_rows])
    return replace(
        batch,
        token_ids=batch.token_ids[:num_tokens],
        positions=batch.positions[:num_tokens],
        kv_locations=batch.kv_locations[:num_tokens],
        row_slots=batch.row_slots[:num_rows],
        device_row_starts=batch.device_row_starts[: num_rows + 1],
        device_row_lengths=batch.device_row_lengths[:num_rows],
        row_starts=batch.row_starts[: num_rows + 1],
        row_lengths=batch.row_lengths[:num_rows],
        shared_prefixes=None,
    )
