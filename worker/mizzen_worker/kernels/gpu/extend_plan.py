"""Owns which tile of an extend attention is where, told by the device; attends to nothing.

A tile is some neighbouring new tokens of one row, for one KV head and the query heads that share
it. The grid of a step is the bound of tiles that so many tokens in so many rows can make, so that a
captured launch serves any rows; a small kernel tells each tile its row and first token once a step.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_SHARED_BYTES_OF_SM_90 = 232_448
_MAP_BLOCK = 64
"""Tiles and rows that a program of the map looks at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRows:
    """Rows of a step on the device; a captured step pads them with rows without new tokens.

    ``page_table`` [slots, pages] int32; ``row_slots`` [num_rows] int64; ``row_starts``
    [num_rows + 1] int32, the first new token of each row; ``row_lengths`` [num_rows] int32,
    positions with KV, new tokens included.
    """

    page_table: torch.Tensor
    row_slots: torch.Tensor
    row_starts: torch.Tensor
    row_lengths: torch.Tensor
    page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Query heads h * group to h * group + group - 1 read KV head h."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendTile:
    """``query_rows`` are (token, head) pairs; powers of two."""

    query_rows: int
    key_block: int
    num_stages: int
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendPlan:
    """What the layers of a step share. ``tiles`` [num_tiles, 2] int32: row (-1: none), token."""

    rows: ExtendRows
    heads: HeadShape
    tile: ExtendTile
    tiles: torch.Tensor


def choose_tile(heads: HeadShape, dtype: torch.dtype, shared_bytes: int) -> ExtendTile:
    """Measured on an H200 for 128 wide heads in bfloat16: two programs fit a multiprocessor.

    ``shared_bytes``: what one program may take of a multiprocessor's memory.
    """
    width = triton.next_power_of_2(heads.head_dim)
    query_rows = max(64, triton.next_power_of_2(heads.group))
    if dtype.itemsize > 2:
        key_block = max(16, 2048 // width)
        return ExtendTile(query_rows=query_rows, key_block=key_block, num_stages=2, num_warps=4)
    if width > 128 or query_rows > 64:
        return ExtendTile(query_rows=query_rows, key_block=32, num_stages=2, num_warps=8)
    if shared_bytes < _SHARED_BYTES_OF_SM_90:
        # Scores and output in the registers of 4 warps would spill without warp group products.
        return ExtendTile(query_rows=query_rows, key_block=64, num_stages=2, num_warps=8)
    return ExtendTile(query_rows=query_rows, key_block=64, num_stages=3, num_warps=4)


# Not specialised: a step of one row must not compile a kernel of its own.
@triton.jit(
    do_not_specialize=["num_rows", "num_tiles"], do_not_specialize_on_alignment=["starts_ptr"]
)
def _map_tiles(starts_ptr, tiles_ptr, num_rows, num_tiles, TOKENS: tl.constexpr, B: tl.constexpr):
    tile = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.zeros([B], tl.int32)
    first_tile = tl.zeros([B], tl.int32)
    before = tl.program_id(0) * 0
    for r0 in range(0, num_rows, B):
        r = r0 + tl.arange(0, B)
        begin = tl.load(starts_ptr + r, mask=r < num_rows, other=0)
        end = tl.load(starts_ptr + r + 1, mask=r < num_rows, other=0)
        tiles = (end - begin + TOKENS - 1) // TOKENS
        ends = before + tl.cumsum(tiles, 0)
        is_before = (ends[None, :] <= tile[:, None]) & (r < num_rows)[None, :]
        row += tl.sum(is_before.to(tl.int32), axis=1)
        first_tile = tl.maximum(first_tile, tl.max(tl.where(is_before, ends[None, :], 0), axis=1))
        before += tl.sum(tiles, axis=0)
    row = tl.where(tile < before, row, -1)
    tl.store(tiles_ptr + 2 * tile, row, mask=tile < num_tiles)
    tl.store(tiles_ptr + 2 * tile + 1, (tile - first_tile) * TOKENS, mask=tile < num_tiles)


def plan_extend(
    rows: ExtendRows, heads: HeadShape, num_tokens: int, tile: ExtendTile
) -> ExtendPlan:
    """Where the tiles of a step lie: one small launch, for all its layers.

    ``num_tokens`` bounds the new tokens of all ``rows`` (of a captured step: the bucket's).
    """
    num_rows = len(rows.row_slots)
    if rows.row_starts.shape != (num_rows + 1,) or rows.row_lengths.shape != (num_rows,):
        message = (
            f"row_starts {tuple(rows.row_starts.shape)} and row_lengths "
            f"{tuple(rows.row_lengths.shape)} do not fit {num_rows} rows; give one more and as many"
        )
        raise ValueError(message)
    tokens = tile.query_rows // heads.group
    num_tiles = num_tokens // tokens + min(num_rows, num_tokens)
    tiles = torch.empty(num_tiles, 2, dtype=torch.int32, device=rows.row_starts.device)
    if num_tiles:
        _map_tiles[(triton.cdiv(num_tiles, _MAP_BLOCK),)](
            rows.row_starts, tiles, num_rows, num_tiles, TOKENS=tokens, B=_MAP_BLOCK, num_warps=4
        )
    return ExtendPlan(rows=rows, heads=heads, tile=tile, tiles=tiles)
