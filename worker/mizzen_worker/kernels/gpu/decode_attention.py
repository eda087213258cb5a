"""Owns attention of rows with one new token each over paged KV; decides neither tiles nor splits.

``queries`` [num_rows, num_heads, head_dim], rows any stride, heads contiguous, unscaled; ``keys``
and ``values`` [positions, num_kv_heads, head_dim] contiguous, position = page * page_size + offset,
any float dtype (computed in that of ``queries``). Result [num_rows, num_heads * head_dim] of the
dtype of ``queries``. The new token's KV is in the pool already. Any page size, head_dim >= 16 and
group of query heads; offsets are 64 bits wide, as pools are.

Query heads of one KV head are packed into the rows of one tile (at least 16, the rest is masked).
Grid of the main kernel: (KV head and block of its query heads, split, row). A row's positions are
divided among the splits on the device, from its real length, so the grid depends on bounds only.
With one split the result is written at once, else ``_merge_kernel`` (one warp per row and head up
to 32 splits, so that their sum stays in registers) joins the splits' means and log-sums.

``shared``: means and log-sums of each row's first positions, computed elsewhere
(``shared_prefix_attention.py``); then rows begin behind these, and they are merged in.

A dependent launch (``PDL``): slots, lengths and page table are read before the wait, and must have
been complete before the last launch of the chain that was not dependent. Behind the kernel of the
shared prefixes, which triggers after its own wait, everything but its results may be read early.
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
    LEAST_SEEN,
    PagedRows,
    ScoreRule,
    attend_tile,
    divided,
    log_of_sum,
)
from mizzen_worker.kernels.gpu.base_two import LOG2E

_LEAST_HEADS = 16
"""Rows of the smallest tile of a tensor core."""
_MOST_HEADS = 64
_MERGED_PER_WARP = 4096
"""Elements of a row's parts that one warp merges without leaving its registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTile:
    """How the main kernel runs: positions per iteration, and splits of a row.

    ``is_ahead``: page ids are read one iteration ahead, so that keys and values are loads of the
    first level and double-buffered: good where few programs run on a multiprocessor, bad where
    other programs hide the latency.
    """

    tokens: int
    num_warps: int
    num_stages: int
    is_ahead: bool
    splits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPart:
    """Results over the rows' shared prefixes, and room for those of the rows' own positions.

    ``means`` [num_rows, num_heads, parts, head_dim] of any float dtype and ``log_sums``
    [num_rows, num_heads, parts] float32, contiguous: the first ``splits`` parts are the shared
    ones, undefined for rows without; the others are the splits' of the main kernel, none where it
    has one split only. ``row_tokens`` [num_rows] int32: positions covered, 0 for rows without.
    """

    means: torch.Tensor
    log_sums: torch.Tensor
    row_tokens: torch.Tensor
    splits: int


@triton.jit(
    do_not_specialize=["max_pages", "window"],
    do_not_specialize_on_alignment=["row_slots", "row_lengths", "row_shared"],
)
def _decode_kernel(
    queries,
    keys,
    values,
    page_table,
    row_slots,
    row_lengths,
    row_shared,
    sinks,
    out,
    means,
    log_sums,
    query_stride,
    max_pages,
    window,
    scale,
    value_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    IS_AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """See the module. ``scale`` includes LOG2E and the scale of keys."""
    if PDL:
        gdc_launch_dependents()
    HEAD_BLOCKS: tl.constexpr = (GROUP + BLOCK_HEADS - 1) // BLOCK_HEADS
    parts = SHARED_SPLITS
    if IS_SPLIT:
        parts += tl.num_programs(1)
    kv_head = tl.program_id(0) // HEAD_BLOCKS
    split = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    length = tl.load(row_lengths + row)
    table = page_table + tl.load(row_slots + row) * max_pages
    begin = length * 0
    if SHARED_SPLITS > 0:
        shared = tl.load(row_shared + row)
        begin = shared
    if HAS_WINDOW:
        begin = tl.maximum(begin, length - window)
    first = begin
    end = length
    if IS_SPLIT:
        span = tl.maximum(length - begin, 0)
        chunk = tl.cdiv(tl.cdiv(span, tl.num_programs(1)), BLOCK_TOKENS) * BLOCK_TOKENS
        first = begin + split * chunk
        end = tl.minimum(first + chunk, length)

    index = tl.program_id(0) % HEAD_BLOCKS * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = index < GROUP
    head = kv_head * GROUP + index
    dim = tl.arange(0, BLOCK_DIM)
    in_dim = dim < HEAD_DIM
    is_element = is_head[:, None] & in_dim[None, :]
    token = tl.arange(0, BLOCK_TOKENS)
    if IS_AHEAD:
        next_pages = tl.load(
            table + (first + token) // PAGE_SIZE, mask=first + token < end, other=0
        )
    if PDL and SHARED_SPLITS == 0:
        gdc_wait()

    query = tl.load(
        queries + row * query_stride + head[:, None] * HEAD_DIM + dim[None, :],
        mask=is_element,
        other=0.0,
    )
    top = tl.full([BLOCK_HEADS], EMPTY, tl.float32)
    total = tl.zeros([BLOCK_HEADS], tl.float32)
    acc = tl.zeros([BLOCK_HEADS, BLOCK_DIM], tl.float32)
    for start in tl.range(first, end, BLOCK_TOKENS, num_stages=STAGES):
        position = start + token
        exists = position < end
        if IS_AHEAD:
            pages = next_pages
            ahead = position + BLOCK_TOKENS
            next_pages = tl.load(table + ahead // PAGE_SIZE, mask=ahead < end, other=0)
        else:
            pages = tl.load(table + position // PAGE_SIZE, mask=exists, other=0)
        location = pages.to(tl.int64) * PAGE_SIZE + position % PAGE_SIZE
        offset = (location * NUM_KV_HEADS + kv_head) * HEAD_DIM
        mask = exists[:, None] & in_dim[None, :] if BLOCK_DIM > HEAD_DIM else exists[:, None]
        key = tl.load(keys + offset[:, None] + dim[None, :], mask=mask, other=0.0)
        value = tl.load(values + offset[:, None] + dim[None, :], mask=mask, other=0.0)
        top, total, acc = attend_tile(
            query,
            key.to(query.dtype),
            value.to(query.dtype),
            exists[None, :],
            scale,
            top,
            total,
            acc,
            SOFT_CAP,
            PRECISION,
        )
    if PDL and SHARED_SPLITS > 0:
        gdc_wait()

    part = (row * (NUM_KV_HEADS * GROUP) + head) * parts
    if IS_SPLIT:
        part += SHARED_SPLITS + split
        tl.store(log_sums + part, log_of_sum(top, total), mask=is_head)
        mean = divided(acc, total).to(means.dtype.element_ty)
        target = means + part[:, None] * HEAD_DIM + dim[None, :]
        if first < end:
            tl.store(target, mean, mask=is_element)
    else:
        for other in tl.static_range(SHARED_SPLITS):
            if shared > 0:
                other_top = tl.load(log_sums + part + other, mask=is_head, other=EMPTY)
                source = means + (part + other)[:, None] * HEAD_DIM + dim[None, :]
                mean = tl.load(source, mask=is_element, other=0.0).to(tl.float32)
                new_top = tl.maximum(top, other_top)
                keep = tl.exp2(top - new_top)
                weight = tl.where(other_top > LEAST_SEEN, tl.exp2(other_top - new_top), 0.0)
                total = total * keep + weight
                acc = acc * keep[:, None] + mean * weight[:, None]
                top = new_top
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=is_head, other=0.0).to(tl.float32) * LOG2E
            new_top = tl.maximum(top, sink)
            keep = tl.exp2(top - new_top)
            total = total * keep + tl.exp2(sink - new_top)
            acc *= keep[:, None]
        result = (divided(acc, total) * value_scale).to(out.dtype.element_ty)
        target = out + row * (NUM_KV_HEADS * GROUP * HEAD_DIM)
        tl.store(target + head[:, None] * HEAD_DIM + dim[None, :], result, mask=is_element)


@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["row_shared"])
def _merge_kernel(
    means,
    log_sums,
    row_shared,
    sinks,
    out,
    value_scale,
    parts,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (head, row): the mean over a row's parts, weighted by their sums."""
    if PDL:
        gdc_launch_dependents()
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, BLOCK_PARTS)
    dim = tl.arange(0, BLOCK_DIM)
    in_dim = dim < HEAD_DIM
    is_part = part < parts
    if SHARED_SPLITS > 0:
        is_part &= part >= tl.where(tl.load(row_shared + row) > 0, 0, SHARED_SPLITS)
    if PDL:
        gdc_wait()
    first = (row * NUM_HEADS + head) * parts
    tops = tl.load(log_sums + first + part, mask=is_part, other=EMPTY)
    source = means + (first + part)[:, None] * HEAD_DIM + dim[None, :]
    mean = tl.load(source, mask=is_part[:, None] & in_dim[None, :], other=0.0).to(tl.float32)
    top = tl.max(tops, axis=0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        top = tl.maximum(top, sink)
    has_seen = tops > LEAST_SEEN
    weights = tl.where(has_seen, tl.exp2(tops - top), 0.0)
    total = tl.sum(weights, axis=0)
    if HAS_SINKS:
        total += tl.exp2(sink - top)
    # A part that has seen nothing has written no mean: what lies there may be NaN.
    mean = tl.where(has_seen[:, None], mean, 0.0)
    weights *= value_scale / tl.where(total > 0, total, 1.0)
    result = tl.sum(weights[:, None] * mean, axis=0).to(out.dtype.element_ty)
    tl.store(out + (row * NUM_HEADS + head) * HEAD_DIM + dim, result, mask=in_dim)


def num_parts(tile: DecodeTile, shared_splits: int) -> int:
    """Parts of a row whose means and log-sums are kept; see ``SharedPart``."""
    return shared_splits + (tile.splits if tile.splits > 1 else 0)


def decode_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    rule: ScoreRule,
    *,
    tile: DecodeTile,
    launch: Mapping[str, Any],
    shared: SharedPart | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of ``rows``; see the module. ``launch``: of ``launching``.

    The result is written to ``out`` where one is given (contiguous), else to a new tensor.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    require_paged(queries, keys, values, rows)
    if out is None:
        out = queries.new_empty(num_rows, num_heads * head_dim)
    if num_rows == 0:
        return out
    shared_splits = 0 if shared is None else shared.splits
    parts = num_parts(tile, shared_splits)
    if shared is not None:
        means, log_sums = shared.means, shared.log_sums
        if means.shape != (num_rows, num_heads, parts, head_dim):
            message = f"shared means {tuple(means.shape)} do not fit {parts} parts of {num_rows}"
            raise ValueError(message)
    elif tile.splits > 1:
        means = torch.empty(num_rows, num_heads, parts, head_dim, device=queries.device)
        log_sums = torch.empty(num_rows, num_heads, parts, device=queries.device)
    else:
        means = log_sums = out
    group = num_heads // num_kv_heads
    block_heads = min(max(triton.next_power_of_2(group), _LEAST_HEADS), _MOST_HEADS)
    row_shared = rows.row_lengths if shared is None else shared.row_tokens
    sinks = out if rule.sinks is None else rule.sinks
    _decode_kernel[(num_kv_heads * triton.cdiv(group, block_heads), tile.splits, num_rows)](
        queries,
        keys,
        values,
        rows.page_table,
        rows.row_slots,
        rows.row_lengths,
        row_shared,
        sinks,
        out,
        means,
        log_sums,
        queries.stride(0),
        rows.page_table.stride(0),
        rule.window or 0,
        rule.scale * rule.key_scale * LOG2E.value,
        rule.value_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=rows.page_size,
        BLOCK_HEADS=block_heads,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=tile.tokens,
        STAGES=tile.num_stages,
        IS_SPLIT=tile.splits > 1,
        SHARED_SPLITS=shared_splits,
        HAS_WINDOW=rule.window is not None,
        HAS_SINKS=rule.sinks is not None,
        SOFT_CAP=rule.soft_cap,
        IS_AHEAD=tile.is_ahead,
        PRECISION=IEEE,
        num_warps=tile.num_warps,
        **launch,
    )
    if tile.splits > 1:
        block_dim, block_parts = triton.next_power_of_2(head_dim), triton.next_power_of_2(parts)
        _merge_kernel[(num_heads, num_rows)](
            means,
            log_sums,
            row_shared,
            sinks,
            out,
            rule.value_scale,
            parts,
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            BLOCK_DIM=block_dim,
            SHARED_SPLITS=shared_splits,
            BLOCK_PARTS=block_parts,
            HAS_SINKS=rule.sinks is not None,
            num_warps=max(1, block_parts * block_dim // _MERGED_PER_WARP),
            **launch,
        )
    return out


def require_paged(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: PagedRows
) -> None:
    """Raise ``ValueError`` where shapes or layouts are not those of the contract."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    if head_dim < 16 or num_heads % num_kv_heads or keys.shape[2] != head_dim:
        message = (
            f"{num_heads} query heads of {head_dim} over keys {tuple(keys.shape)}: heads must be a "
            "multiple of the KV heads, of the same size, 16 or more"
        )
        raise ValueError(message)
    if values.shape != keys.shape or not (keys.is_contiguous() and values.is_contiguous()):
        message = "keys and values must be contiguous and of one shape"
        raise ValueError(message)
    if queries.stride(2) != 1 or queries.stride(1) != head_dim:
        message = f"queries of strides {queries.stride()}: heads must lie one after the other"
        raise ValueError(message)
    if len(rows.row_slots) != num_rows or len(rows.row_lengths) != num_rows:
        message = f"{num_rows} queries for {len(rows.row_slots)} slots"
        raise ValueError(message)
