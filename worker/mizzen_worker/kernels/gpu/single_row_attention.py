"""Owns attention of one token over its paged KV, and entering the token's own; projects nothing.

Contract: ``projected`` [heads + 2 KV heads, head_dim] as of ``rotary_gemv.py`` with its
``squares``; the pool's keys and values [positions, KV heads, head_dim] contiguous, of any one float
dtype (FP8 with scales), computed in that of ``projected``; head_dim a multiple of 16 up to 256. The
row's length (own token included), slot, page table row and ``location`` come from the device; the
length may be anything the table holds.

Split kernel, grid [KV heads, splits]: split s < splits - 1 attends over its share of the positions
before the token's own,

    first visible ... [s * chunk, (s + 1) * chunk) ... length - 2

all heads of a KV head in one tile of a tensor-core product. What it reads of the pool was there
before the step, so the first tile is loaded before the wait. The last split has the token's own key
and value: it stores them at ``location`` and gives their score. Each writes its result, divided by
its sum, and the base-2 logarithm of the sum. Merge kernel, grid [heads, slices of head_dim]: the
weighted mean; with one warp the splits of a column stay in few threads.

A masked row (``location`` in page 0, the sink) costs no more; its result means nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.base_two import LOG2E
from mizzen_worker.kernels.gpu.dependent_launch import (
    begin_dependent,
    let_next_begin,
    wait_for_previous,
)
from mizzen_worker.kernels.gpu.stored_kv import require_scaled, to_stored

NO_WINDOW = 2**31 - 1
_MASKED = tl.constexpr(-1e30)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTile:
    """``splits`` (the last one for the token itself), positions of a tile, warps, loop stages.

    ``merge_columns`` of a head are merged by one program of one warp.
    """

    splits: int
    tokens: int
    warps: int
    stages: int = 2
    merge_columns: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKv:
    """Where the row's keys and values are, all on the device.

    ``keys`` and ``values`` [positions, KV heads, head_dim]; ``page_table`` [slots, pages] int32;
    ``slot`` and ``location`` [1] int64; ``length`` [1] int32, the token's own position included.
    """

    keys: torch.Tensor
    values: torch.Tensor
    page_table: torch.Tensor
    slot: torch.Tensor
    location: torch.Tensor
    length: torch.Tensor
    page_size: int
    key_scale: float = 1.0
    value_scale: float = 1.0


@triton.jit
def _with_columns(rows, D: tl.constexpr, COLUMNS: tl.constexpr):
    """A mask of rows as one of a tile whose columns beyond ``D`` do not exist."""
    mask = rows[:, None]
    if COLUMNS != D:
        mask = mask & (tl.arange(0, COLUMNS) < D)[None, :]
    return mask


@triton.jit
def _load_tile(
    keys_ptr,
    values_ptr,
    row_ptr,
    kv_head,
    start,
    end,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Keys and values [TOKENS, COLUMNS] of positions from ``start``, zeros from ``end`` on."""
    position = start + tl.arange(0, TOKENS)
    is_seen = position < end
    page = tl.load(row_ptr + position // PAGE, mask=is_seen, other=0)
    # 64 bits: a pool has more than 2**31 elements
    row = (page.to(tl.int64) * PAGE + position % PAGE) * KV_HEADS + kv_head
    offsets = row[:, None] * D + tl.arange(0, COLUMNS)[None, :]
    mask = _with_columns(is_seen, D, COLUMNS)
    keys = tl.load(keys_ptr + offsets, mask=mask, other=0.0)
    values = tl.load(values_ptr + offsets, mask=mask, other=0.0)
    return keys, values


@triton.jit
def _fold(q, factor, keys, values, is_seen, top, total, sums):
    """Add a tile of positions to the running softmax."""
    values = values.to(q.dtype)
    scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision="ieee") * factor[:, None]
    scores = tl.where(is_seen[None, :], scores, _MASKED)
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    p = tl.exp2(scores - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(p, axis=1)
    sums = tl.dot(p.to(values.dtype), values, sums * shrink[:, None], input_precision="ieee")
    return new_top, total, sums


@triton.jit
def _head_factors(
    squares, scale, eps, M: tl.constexpr, D: tl.constexpr, HAS_HEAD_NORMS: tl.constexpr
):
    """What the scores of each head are multiplied with, [M]."""
    factors = tl.full([M], 1.0, tl.float32) * scale
    if HAS_HEAD_NORMS:
        factors = factors * tl.rsqrt(tl.sum(squares, axis=1) / D + eps)
    return factors


@triton.jit
def _split_kernel(
    projected_ptr,
    squares_ptr,
    keys_ptr,
    values_ptr,
    page_table_ptr,
    slot_ptr,
    location_ptr,
    length_ptr,
    partial_ptr,
    log_ptr,
    max_pages,
    window,
    scale,
    key_inverse,
    value_inverse,
    eps,
    G: tl.constexpr,
    M: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_HEAD_NORMS: tl.constexpr,
    PDL: tl.constexpr,
):
    # First of all: the compiler lets the first tile arrive before the wait.
    let_next_begin(PDL)
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    num_old = tl.maximum(tl.load(length_ptr) - 1, 0)
    first = tl.maximum(num_old + 1 - window, 0)
    chunk = tl.cdiv(num_old - first, SPLITS - 1)
    start = first + split * chunk
    end = tl.minimum(start + chunk, num_old)  # the last split: nothing
    row_ptr = page_table_ptr + tl.load(slot_ptr) * max_pages
    keys, values = _load_tile(
        keys_ptr, values_ptr, row_ptr, kv_head, start, end, KV_HEADS, D, COLUMNS, PAGE, TOKENS
    )
    location = tl.load(location_ptr)
    rg = tl.arange(0, M)
    rd = tl.arange(0, COLUMNS)
    rp = tl.arange(0, PARTS_BLOCK)
    is_head = rg < G
    head = kv_head * G + rg
    mask = _with_columns(is_head, D, COLUMNS)
    queries = projected_ptr + head[:, None] * D + rd[None, :]
    parts = squares_ptr + head[:, None] * PARTS + rp[None, :]
    parts_mask = _with_columns(is_head, PARTS, PARTS_BLOCK)
    out_row = head * SPLITS + split
    partials = partial_ptr + out_row[:, None] * D + rd[None, :]
    wait_for_previous(PDL)

    # Each branch asks for all it reads at once. Factors are wanted in another layout in each.
    if split == SPLITS - 1:
        is_column = rd < D
        key_head = KV_HEADS * G + kv_head
        squares = scale
        key_factor = 1.0
        if HAS_HEAD_NORMS:
            squares = tl.load(parts, mask=parts_mask, other=0.0)
            key_parts = tl.load(squares_ptr + key_head * PARTS + rp, mask=rp < PARTS, other=0.0)
            key_factor = tl.rsqrt(tl.sum(key_parts, axis=0) / D + eps)
        key = tl.load(projected_ptr + key_head * D + rd, mask=is_column, other=0.0)
        value_ptr = projected_ptr + (key_head + KV_HEADS) * D
        value = tl.load(value_ptr + rd, mask=is_column, other=0.0)
        q = tl.load(queries, mask=mask, other=0.0)
        # What later tokens will see of it, it sees itself.
        TYPE: tl.constexpr = keys_ptr.dtype.element_ty
        key = to_stored(key.to(tl.float32) * key_factor, key_inverse, TYPE)
        value = to_stored(value.to(tl.float32), value_inverse, TYPE)
        offset = (location * KV_HEADS + kv_head) * D
        tl.store(keys_ptr + offset + rd, key, mask=is_column)
        tl.store(values_ptr + offset + rd, value, mask=is_column)
        score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], axis=1)
        score = score * _head_factors(squares, scale, eps, M, D, HAS_HEAD_NORMS)
        repeated = tl.zeros([M, COLUMNS], tl.float32) + value.to(tl.float32)[None, :]
        tl.store(partials, repeated, mask=mask)
        tl.store(log_ptr + out_row, score, mask=is_head)
    else:
        squares = scale
        if HAS_HEAD_NORMS:
            squares = tl.load(parts, mask=parts_mask, other=0.0)
        q = tl.load(queries, mask=mask, other=0.0)
        factor = _head_factors(squares, scale, eps, M, D, HAS_HEAD_NORMS)
        rt = tl.arange(0, TOKENS)
        top = tl.full([M], _MASKED, tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, COLUMNS], tl.float32)
        top, total, sums = _fold(q, factor, keys, values, start + rt < end, top, total, sums)
        if start + TOKENS < end:
            # Behind a branch: preparing a loop costs as much as a tile.
            for later in tl.range(start + TOKENS, end, TOKENS):
                keys, values = _load_tile(
                    keys_ptr,
                    values_ptr,
                    row_ptr,
                    kv_head,
                    later,
                    end,
                    KV_HEADS,
                    D,
                    COLUMNS,
                    PAGE,
                    TOKENS,
                )
                is_seen = later + rt < end
                top, total, sums = _fold(q, factor, keys, values, is_seen, top, total, sums)
        # A split without positions has the top _MASKED, so that its weight is 0.
        tl.store(partials, sums / total[:, None], mask=mask)
        tl.store(log_ptr + out_row, top + tl.log2(total), mask=is_head)


@triton.jit
def _merge_kernel(
    partial_ptr,
    log_ptr,
    output_ptr,
    value_scale,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    head = tl.program_id(0)
    rs = tl.arange(0, SPLITS_BLOCK)
    rd = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin_dependent(PDL)
    logs = tl.load(log_ptr + head * SPLITS + rs, mask=rs < SPLITS, other=-float("inf"))
    inside = (rs < SPLITS)[:, None] & (rd < D)[None, :]  # all, but for odd sizes
    rows = partial_ptr + (head * SPLITS + rs)[:, None] * D
    tile = tl.load(rows + rd[None, :], mask=inside, other=0.0)
    weights = tl.exp2(logs - tl.max(logs, axis=0))
    merged = tl.sum(tile * weights[:, None], axis=0) * (value_scale / tl.sum(weights, axis=0))
    tl.store(output_ptr + head * D + rd, merged.to(output_ptr.dtype.element_ty), mask=rd < D)


def _check(projected: torch.Tensor, kv: RowKv, num_heads: int, tile: SplitTile) -> None:
    _, num_kv_heads, head_dim = kv.keys.shape
    if head_dim % 16 or not 16 <= head_dim <= 256 or num_heads % num_kv_heads:
        message = (
            f"single-row attention of {num_heads} heads over {num_kv_heads} KV heads of {head_dim}:"
            " heads must be a multiple of KV heads and head_dim one of 16 up to 256"
        )
        raise ValueError(message)
    if projected.numel() != (num_heads + 2 * num_kv_heads) * head_dim:
        message = f"{projected.numel()} projected values are not those of {num_heads} heads"
        raise ValueError(message)
    if kv.keys.dtype != kv.values.dtype:
        message = f"the pool holds keys of {kv.keys.dtype} and values of {kv.values.dtype}"
        raise ValueError(message)
    require_scaled(kv.keys.dtype, kv.key_scale, kv.value_scale)
    if tile.splits < 2:
        message = f"attention needs at least 2 splits, not {tile.splits}"
        raise ValueError(message)


def single_row_attention(
    projected: torch.Tensor,
    squares: torch.Tensor | None,
    kv: RowKv,
    output: torch.Tensor,
    *,
    window: int | None,
    eps: float,
    tile: SplitTile,
    launch: Mapping[str, Any],
) -> None:
    """Attention of the token, ``output`` [heads * head_dim]; its key and value enter the pool.

    ``squares`` None: heads have no norms. With a ``window`` the token sees itself and the
    ``window - 1`` positions before it.
    """
    num_kv_heads, head_dim = kv.keys.shape[1:]
    num_heads = output.numel() // head_dim
    _check(projected, kv, num_heads, tile)
    group_size = num_heads // num_kv_heads
    num_parts = 1 if squares is None else squares.shape[1]
    shape = (num_heads, tile.splits)
    partials = torch.empty((*shape, head_dim), dtype=torch.float32, device=output.device)
    logs = torch.empty(shape, dtype=torch.float32, device=output.device)
    _split_kernel[(num_kv_heads, tile.splits)](
        projected,
        projected if squares is None else squares,
        kv.keys,
        kv.values,
        kv.page_table,
        kv.slot,
        kv.location,
        kv.length,
        partials,
        logs,
        kv.page_table.stride(0),
        NO_WINDOW if window is None else window,
        head_dim**-0.5 * LOG2E.value * kv.key_scale,
        1.0 / kv.key_scale,
        1.0 / kv.value_scale,
        eps,
        G=group_size,
        M=max(16, triton.next_power_of_2(group_size)),
        KV_HEADS=num_kv_heads,
        D=head_dim,
        COLUMNS=triton.next_power_of_2(head_dim),
        PARTS=num_parts,
        PARTS_BLOCK=triton.next_power_of_2(num_parts),
        PAGE=kv.page_size,
        SPLITS=tile.splits,
        TOKENS=tile.tokens,
        HAS_HEAD_NORMS=squares is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch,
    )
    columns = min(tile.merge_columns, triton.next_power_of_2(head_dim))
    _merge_kernel[(num_heads, triton.cdiv(head_dim, columns))](
        partials,
        logs,
        output,
        kv.value_scale,
        D=head_dim,
        SPLITS=tile.splits,
        SPLITS_BLOCK=triton.next_power_of_2(tile.splits),
        COLUMNS=columns,
        num_warps=1,
        **launch,
    )
