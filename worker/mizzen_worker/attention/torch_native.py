"""Owns attention through torch's scaled-dot-product kernels, the default without native kernels.

Rows with one new token are batched by padded length; longer rows run one after the other.
"""

from dataclasses import dataclass

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


def _extend_part(batch: ForwardBatch, row: int) -> _Part:
    first, after = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
    locations = batch.row_locations(row)
    tokens = torch.arange(first, after, device=locations.device)
    index = torch.arange(len(locations), device=locations.device)
    mask = index[None, :] <= batch.positions[first:after, None]
    return _Part(tokens=tokens[None], locations=locations[None], mask=mask[None, None])


def _decode_part(batch: ForwardBatch, rows: list[int]) -> _Part:
    device = batch.page_table.device
    lengths = torch.from_numpy(batch.row_lengths[rows]).to(device)
    index = torch.arange(int(lengths.max()), device=device)
    slots = batch.row_slots[rows]
    pages = batch.page_table[slots][:, index // batch.page_size].long()
    mask = index[None, :] < lengths[:, None]
    locations = torch.where(mask, pages * batch.page_size + index % batch.page_size, 0)
    tokens = torch.from_numpy(batch.row_starts[:-1][rows]).to(device).long()
    return _Part(tokens=tokens[:, None], locations=locations, mask=mask[:, None, None])


def _decode_groups(batch: ForwardBatch, rows: list[int]) -> list[list[int]]:
    """Rows of similar length together, each group within the bound."""
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: -int(batch.row_lengths[row])):
        longest = int(batch.row_lengths[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= _MAX_GATHERED_POSITIONS:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


class _NativeStep:
    def __init__(self, pool: DevicePool, parts: list[_Part]) -> None:
        self._pool = pool
        self._parts = parts

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """See ``StepAttention``."""
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        output = torch.empty_like(queries)
        for part in self._parts:
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
        counts = batch.row_starts[1:] - batch.row_starts[:-1]
        single = [row for row in range(batch.num_rows) if counts[row] == 1]
        parts = [_extend_part(batch, row) for row in range(batch.num_rows) if counts[row] > 1]
        parts += [_decode_part(batch, rows) for rows in _decode_groups(batch, single)]
        return _NativeStep(self._pool, parts)
