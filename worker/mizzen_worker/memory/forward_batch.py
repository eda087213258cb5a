"""Owns the tensors of one step: which tokens run and where their keys and values live.

Built by the ModelRunner from a ``ScheduleBatch``; read by models, operations and attention. It
lies in ``memory`` because everything in it addresses the KV pool. Frozen; rows keep the order of
the batch, tokens of a row are neighbours.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

SHARED_ITEM_ROWS = 32
"""Most rows of one item of ``SharedPrefixes``: with 4 query heads a KV head they fill a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Which decode rows of a step share their first pages, as items of work.

    Rows are counted from ``first_row`` of the batch on, the first decode row. Only the first
    ``num_items`` items are meant: in a captured batch the tensors have the size of a bound.
    """

    first_row: int
    num_items: torch.Tensor
    """[1] int32 device."""
    items: torch.Tensor
    """[max_items, 3] int32 device: first row, rows (up to SHARED_ITEM_ROWS), shared positions."""
    row_tokens: torch.Tensor
    """[num_rows - first_row] int32 device: positions of each row that items cover, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One step on one device."""

    token_ids: torch.Tensor
    """[num_tokens] int64 device."""
    positions: torch.Tensor
    """[num_tokens] int64 device: index of each token in its sequence."""
    kv_locations: torch.Tensor
    """[num_tokens] int64 device: page * page_size + offset to write; inside page 0 if masked."""
    page_table: torch.Tensor
    """[max_slots + 1, max_pages] int32 device: the whole table, indexed by slot."""
    row_slots: torch.Tensor
    """[num_rows] int64 device."""
    sampled_tokens: torch.Tensor
    """[num_sampled] int64 device: indices of the tokens whose logits are asked for."""
    device_row_starts: torch.Tensor
    """[num_rows + 1] int32 device: as ``row_starts``."""
    device_row_lengths: torch.Tensor
    """[num_rows] int32 device: as ``row_lengths``."""
    row_starts: npt.NDArray[np.int32]
    """[num_rows + 1] int32 host: tokens of row r are row_starts[r] to row_starts[r + 1] - 1."""
    row_lengths: npt.NDArray[np.int32]
    """[num_rows] int32 host: positions of the row that have KV after this step."""
    page_size: int
    is_all_sampled: bool = False
    """``sampled_tokens`` are all tokens, in their order; false is always safe."""
    shared_prefixes: SharedPrefixes | None = None
    """None where no rows share pages worth a pass of their own; readers may ignore it."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return int(self.row_starts[-1])

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.row_lengths)

    def row_locations(self, row: int) -> torch.Tensor:
        """[row length] int64 device: where the KV of each position of a row lies."""
        length = int(self.row_lengths[row])
        index = torch.arange(length, device=self.page_table.device)
        # A slice: torch asks the device for the value of an index without dimensions.
        pages = self.page_table[self.row_slots[row : row + 1], index // self.page_size].long()
        return pages * self.page_size + index % self.page_size

    def sampled_rows(self) -> "ForwardBatch":
        """The sampled tokens as rows of one new token each, over the same KV; asks no device.

        Only attention of the last layer needs it. On the host every row has the longest row's
        length, a bound, as in a captured batch.
        """
        sampled = self.sampled_tokens
        num_rows, device = len(sampled), sampled.device
        rows = torch.searchsorted(self.device_row_starts[1:].long(), sampled, right=True)
        positions = self.positions[sampled]
        starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        longest = self.row_lengths.max(initial=0)
        return ForwardBatch(
            token_ids=self.token_ids[sampled],
            positions=positions,
            kv_locations=self.kv_locations[sampled],
            page_table=self.page_table,
            row_slots=self.row_slots[rows.clamp_(max=self.num_rows - 1)],
            sampled_tokens=starts[:-1].long(),
            device_row_starts=starts,
            device_row_lengths=(positions + 1).int(),
            row_starts=np.arange(num_rows + 1, dtype=np.int32),
            row_lengths=np.full(num_rows, longest, dtype=np.int32),
            page_size=self.page_size,
        )
