"""Owns attention through torch's scaled-dot-product kernels, the default without native kernels.

The last rows of a step, those with one new token, are batched by length; rows before them run one
after the other. What the device already has (positions, slots, pages) is never brought to it a
second time, so that nothing here waits for it: both sides sort the same rows by the same lengths.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mizzen_worker.attention.base import StepAttention
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch

_MAX_GATHERED_POSITIONS = 32_768
"""Bound of rows * longest row in one batched decode call, for its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows that run in one call.

    ``tokens`` [rows, new] int64; ``locations`` [rows, length] int64 (0 where padded); ``mask``
    [rows, 1, new, length] bool, True where a token may look.
    """

    tokens: torch.Tensor
    locations: torch.Tensor
    mask: torch.Tensor


def _extend_part(batch: ForwardBatch, row: int, window: int | None) -> _Part:
    first, after = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
    length = int(batch.row_lengths[row])
    start = 0 if window is None else max(0, length - (after - first) - window + 1)
    locations = batch.row_locations(row)[start:]
    tokens = torch.arange(first, after, device=locations.device)
    index = torch.arange(start, length, device=locations.device)[None, :]
    positions = batch.positions[first:after, None]
    mask = index <= positions
    if window is not None:
        mask &= index > positions - window
    return _Part(tokens=tokens[None], locations=locations[None], mask=mask[None, None])


def _decode_part(
    batch: ForwardBatch, rows: torch.Tensor, num_visible: int, window: int | None
) -> _Part:
    """``rows`` [n] on the device, the longest of which sees ``num_visible`` positions.

    Columns are counted from each row's first visible position.
    """
    tokens = rows + (batch.num_tokens - batch.num_rows)
    last = batch.positions[tokens][:, None]
    first = torch.zeros_like(last) if window is None else (last - (window - 1)).clamp(min=0)
    index = first + torch.arange(num_visible, device=rows.device)[None, :]
    mask = index <= last
    positions = index.masked_fill(~mask, 0)
    slots = batch.row_slots[rows][:, None]
    pages = batch.page_table[slots, positions // batch.page_size].long()
    locations = (pages * batch.page_size + positions % batch.page_size).masked_fill_(~mask, 0)
    return _Part(tokens=tokens[:, None], locations=locations, mask=mask[:, None, None])


def _decode_groups(lengths: list[int]) -> list[slice]:
    """Neighbours among rows of falling length, each group within the bound."""
    groups: list[slice] = []
    first = 0
    for index in range(1, len(lengths) + 1):
        is_full = (index - first + 1) * lengths[first] > _MAX_GATHERED_POSITIONS
        if index == len(lengths) or is_full:
            groups.append(slice(first, index))
            first = index
    return groups


def _decode_parts(batch: ForwardBatch, first_row: int, window: int | None) -> list[_Part]:
    """Rows from ``first_row``: one new token each, the last of its row."""
    lengths = batch.row_lengths[first_row:]
    if not len(lengths):
        return []
    positions = batch.positions[batch.num_tokens - len(lengths) :]
    order = torch.sort(positions, descending=True, stable=True).indices + first_row
    falling = -np.sort(-lengths)
    visible = (falling if window is None else np.minimum(falling, window)).tolist()
    return [
        _decode_part(batch, order[group], visible[group.start], window)
        for group in _decode_groups(visible)
    ]


def _parts(batch: ForwardBatch, window: int | None) -> list[_Part]:
    counts = np.diff(batch.row_starts)
    longer = np.flatnonzero(counts > 1)
    num_extending = int(longer[-1]) + 1 if len(longer) else 0
    parts = [_extend_part(batch, row, window) for row in range(num_extending)]
    return parts + _decode_parts(batch, num_extending, window)


class _NativeStep:
    """Remembers the parts per window: all layers of one window share them."""

    def __init__(self, pool: DevicePool, batch: ForwardBatch) -> None:
        self._pool = pool
        self._batch = batch
        self._parts_by_window: dict[int | None, list[_Part]] = {}

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        if window not in self._parts_by_window:
            self._parts_by_window[window] = _parts(self._batch, window)
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        output = torch.empty_like(queries) if out is None else out.view(queries.shape)
        for part in self._parts_by_window[window]:
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries[part.tokens].transpose(1, 2),
                keys[part.locations].transpose(1, 2),
                values[part.locations].transpose(1, 2),
                attn_mask=part.mask,
                enable_gqa=True,
            )
            output[part.tokens] = attended.transpose(1, 2)
        return output.flatten(1)


class TorchNativeAttention:
    """Gathers each row's KV by its pages, then one fused call."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> StepAttention:  # noqa: ARG002
        """See ``AttentionBackend``."""
        return _NativeStep(self._pool, batch)
