"""Owns attention through torch's scaled-dot-product kernels, the default without native kernels.

Rows with one new token are batched by padded length; longer rows run one after the other.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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


def _decode_part(batch: ForwardBatch, rows: list[int], window: int | None) -> _Part:
    """Columns are counted from each row's first visible position."""
    device = batch.page_table.device
    starts, lengths = _visible(batch, window)
    first = torch.from_numpy(starts[rows]).to(device)[:, None]
    counts = torch.from_numpy((lengths - starts)[rows]).to(device)[:, None]
    index = torch.arange(int((lengths - starts)[rows].max()), device=device)[None, :]
    mask = index < counts
    positions = torch.where(mask, first + index, 0)
    slots = batch.row_slots[rows]
    pages = batch.page_table[slots[:, None], positions // batch.page_size].long()
    locations = torch.where(mask, pages * batch.page_size + positions % batch.page_size, 0)
    tokens = torch.from_numpy(batch.row_starts[:-1][rows]).to(device).long()
    return _Part(tokens=tokens[:, None], locations=locations, mask=mask[:, None, None])


def _visible(
    batch: ForwardBatch, window: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First visible position of each row's last token, and each row's length."""
    lengths = batch.row_lengths.astype(np.int64)
    starts = np.zeros_like(lengths) if window is None else np.maximum(lengths - window, 0)
    return starts, lengths


def _decode_groups(batch: ForwardBatch, rows: list[int], window: int | None) -> list[list[int]]:
    """Rows that see similarly many positions together, each group within the bound."""
    starts, lengths = _visible(batch, window)
    counts = lengths - starts
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: -int(counts[row])):
        longest = int(counts[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= _MAX_GATHERED_POSITIONS:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _parts(batch: ForwardBatch, window: int | None) -> list[_Part]:
    counts = batch.row_starts[1:] - batch.row_starts[:-1]
    single = [row for row in range(batch.num_rows) if counts[row] == 1]
    parts = [_extend_part(batch, row, window) for row in range(batch.num_rows) if counts[row] > 1]
    groups = _decode_groups(batch, single, window)
    return parts + [_decode_part(batch, rows, window) for rows in groups]


class _NativeStep:
    """Remembers the parts per window: all layers of one window share them."""

    def __init__(self, pool: DevicePool, batch: ForwardBatch) -> None:
        self._pool = pool
        self._batch = batch
        self._parts_by_window: dict[int | None, list[_Part]] = {}

    def attend(self, layer: int, queries: torch.Tensor, window: int | None) -> torch.Tensor:
        """See ``StepAttention``."""
        if window not in self._parts_by_window:
            self._parts_by_window[window] = _parts(self._batch, window)
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        output = torch.empty_like(queries)
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

    def begin(self, batch: ForwardBatch) -> StepAttention:
        """See ``AttentionBackend``."""
        return _NativeStep(self._pool, batch)
