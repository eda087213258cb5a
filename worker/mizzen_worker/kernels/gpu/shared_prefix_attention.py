"""Owns attention of decode rows over the first pages that several of them share, read once for all.

Phase one of two: it leaves means and log-sums per row and split (``SharedPart``); phase two is
``decode_attention`` over each row's own positions, which merges them in. What the rows are and what
is unscaled is said there. Does not decide who shares what: ``items`` [max_items, 3] int32 says it.
An item is (first row, number of rows up to ``item_rows``, positions): neighbouring rows of which
the first ``positions`` positions, fewer than any of their lengths, lie in the very same pages.
``num_items`` [1] int32 are used. Rows in no item are left alone.

Grid: (KV head and block of query rows, split, lane). The query heads of all rows of an item are the
rows of one tile, up to 128 of them, so that keys and values are read once for them and multiplied
on wide tensor cores. Lanes take items in turn: their number is a bound, items are counted on the
device. An item's positions are divided among the splits.

A dependent launch triggers after its own wait: its successor may read before its own wait whatever
was complete when this kernel began.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.gpu.attention_tile import (
    EMPTY,
    IEEE,
    PagedRows,
    ScoreRule,
    attend_tile,
    divided,
    log_of_sum,
)
from mizzen_worker.kernels.gpu.base_two import LOG2E
from mizzen_worker.kernels.gpu.decode_attention import SharedPart, require_paged

_LEAST_QUERIES = 16
_MOST_QUERIES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTile:
    """How the kernel runs: positions per iteration, lanes that take the items, splits of each."""

    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    lanes: int


@triton.jit(
    do_not_specialize=["max_pages", "window"],
    do_not_specialize_on_alignment=["row_slots", "row_lengths", "items", "num_items"],
)
def _shared_kernel(
    queries,
    keys,
    values,
    page_table,
    row_slots,
    row_lengths,
    items,
    num_items,
    means,
    log_sums,
    query_stride,
    max_pages,
    window,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    QUERY_BLOCKS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """See the module. ``scale`` includes LOG2E and the scale of keys."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    kv_head = tl.program_id(0) // QUERY_BLOCKS
    split = tl.program_id(1)
    index = tl.program_id(0) % QUERY_BLOCKS * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)
    member = index // GROUP
    head = kv_head * GROUP + index % GROUP
    dim = tl.arange(0, BLOCK_DIM)
    in_dim = dim < HEAD_DIM
    token = tl.arange(0, BLOCK_TOKENS)
    for item in tl.range(tl.program_id(2), tl.load(num_items), tl.num_programs(2), num_stages=1):
        first_row = tl.load(items + item * 3)
        is_member = member < tl.load(items + item * 3 + 1)
        end = tl.load(items + item * 3 + 2)
        row = (first_row + member).to(tl.int64)
        is_element = is_member[:, None] & in_dim[None, :]
        query = tl.load(
            queries + row[:, None] * query_stride + head[:, None] * HEAD_DIM + dim[None, :],
            mask=is_element,
            other=0.0,
        )
        first = end * 0
        if HAS_WINDOW:
            length = tl.load(row_lengths + row, mask=is_member, other=0)
            least = tl.maximum(length - window, 0)
            first = tl.minimum(tl.min(tl.where(is_member, least, end), axis=0), end)
        chunk = tl.cdiv(tl.cdiv(end - first, SPLITS), BLOCK_TOKENS) * BLOCK_TOKENS
        first += split * chunk
        # A block of query rows without a member has nothing to read.
        has_member = tl.program_id(0) % QUERY_BLOCKS * BLOCK_QUERIES < GROUP * tl.load(
            items + item * 3 + 1
        )
        end = tl.where(has_member, tl.minimum(first + chunk, end), first)

        table = page_table + tl.load(row_slots + first_row) * max_pages
        top = tl.full([BLOCK_QUERIES], EMPTY, tl.float32)
        total = tl.zeros([BLOCK_QUERIES], tl.float32)
        acc = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
        next_pages = tl.load(
            table + (first + token) // PAGE_SIZE, mask=first + token < end, other=0
        )
        for start in tl.range(first, end, BLOCK_TOKENS, num_stages=STAGES):
            position = start + token
            exists = position < end
            location = next_pages.to(tl.int64) * PAGE_SIZE + position % PAGE_SIZE
            ahead = position + BLOCK_TOKENS
            next_pages = tl.load(table + ahead // PAGE_SIZE, mask=ahead < end, other=0)
            offset = (location * NUM_KV_HEADS + kv_head) * HEAD_DIM
            mask = exists[:, None] & in_dim[None, :] if BLOCK_DIM > HEAD_DIM else exists[:, None]
            key = tl.load(keys + offset[:, None] + dim[None, :], mask=mask, other=0.0)
            value = tl.load(values + offset[:, None] + dim[None, :], mask=mask, other=0.0)
            is_visible = exists[None, :]
            if HAS_WINDOW:
                is_visible = is_visible & (position[None, :] >= least[:, None])
            top, total, acc = attend_tile(
                query,
                key.to(query.dtype),
                value.to(query.dtype),
                is_visible,
                scale,
                top,
                total,
                acc,
                SOFT_CAP,
                PRECISION,
            )
        part = (row * (NUM_KV_HEADS * GROUP) + head) * PARTS + split
        mean = divided(acc, total).to(means.dtype.element_ty)
        tl.store(means + part[:, None] * HEAD_DIM + dim[None, :], mean, mask=is_element)
        tl.store(log_sums + part, log_of_sum(top, total), mask=is_member)


def query_block(item_rows: int, group: int) -> int:
    """Query rows of one program, for items of ``item_rows`` rows of ``group`` heads a KV head."""
    wanted: int = triton.next_power_of_2(item_rows * group)
    return max(min(wanted, _MOST_QUERIES), _LEAST_QUERIES)


def shared_prefix_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    rule: ScoreRule,
    *,
    items: torch.Tensor,
    num_items: torch.Tensor,
    item_rows: int,
    tile: SharedTile,
    part: SharedPart,
    launch: Mapping[str, Any],
) -> None:
    """Fill the shared parts of ``part`` for the rows of all items; see the module."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    require_paged(queries, keys, values, rows)
    if items.shape[1:] != (3,) or not items.is_contiguous():
        message = f"items {tuple(items.shape)}: three numbers each, contiguous"
        raise ValueError(message)
    if tile.splits != part.splits:
        message = f"{tile.splits} splits, but room for {part.splits}"
        raise ValueError(message)
    if num_rows == 0 or len(items) == 0:
        return
    group = num_heads // num_kv_heads
    block_queries = query_block(item_rows, group)
    query_blocks = triton.cdiv(item_rows * group, block_queries)
    lanes = min(tile.lanes, len(items))
    _shared_kernel[(num_kv_heads * query_blocks, tile.splits, lanes)](
        queries,
        keys,
        values,
        rows.page_table,
        rows.row_slots,
        rows.row_lengths,
        items,
        num_items,
        part.means,
        part.log_sums,
        queries.stride(0),
        rows.page_table.stride(0),
        rule.window or 0,
        rule.scale * rule.key_scale * LOG2E.value,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=rows.page_size,
        BLOCK_QUERIES=block_queries,
        QUERY_BLOCKS=query_blocks,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=tile.tokens,
        STAGES=tile.num_stages,
        SPLITS=tile.splits,
        PARTS=part.means.shape[2],
        HAS_WINDOW=rule.window is not None,
        SOFT_CAP=rule.soft_cap,
        PRECISION=IEEE,
        num_warps=tile.num_warps,
        **launch,
    )
