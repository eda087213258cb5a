"""Owns what follows a query/key/value projection: norms of heads, rotation, store of keys, values.

Knows no page table (locations come ready) and does not project.

``projected`` [num_tokens, columns] or [splits, num_tokens, columns] any float dtype, columns =
(num_heads + 2 * num_kv_heads) * head_dim, contiguous: splits are partial products that are added
here in their order, multiplied by their token's ``scales`` [num_tokens] float32 (of ``row_scales``,
where rows were projected without their norm); then ``bias`` [columns] float32 is added. Everything
is computed in float32 and rounded once. Queries come out [num_tokens, num_heads, head_dim],
unscaled; keys and values go to ``keys``/``values`` [positions, num_kv_heads, head_dim] at
``locations`` [num_tokens] int64, in the pool's own dtype. Tokens with equal locations (the sink)
leave any of their values there.

Without query heads (``columns`` of keys and values alone) no queries come out. With
``replaces_new`` the rotated keys and the values also take their places in ``projected``, which must
not be split, for an attention that reads a step's new tokens side by side.

Any even head_dim. A dependent launch reads ``positions`` and ``locations`` before it waits: they
must have been complete before the last launch of the chain that was not dependent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.gpu.stored_kv import require_scaled, to_stored

_HEAD_ELEMENTS = 512
"""Pairs of elements that one program rotates: 8 heads of 128. Twice as many for many tokens."""
_FEW_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNormWeights:
    """RMS norms of every query head and of every key head, each [head_dim], contiguous."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTarget:
    """Where tokens stand and where their keys and values go; see the module.

    ``table`` [context, 2, head_dim / 2] float32; ``positions`` and ``locations`` [num_tokens]
    int64. The scales are of an FP8 pool; see ``stored_kv.py``.
    """

    table: torch.Tensor
    positions: torch.Tensor
    locations: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0


# Steps place positions and locations anywhere in one upload.
@triton.jit(do_not_specialize_on_alignment=["positions", "locations"])
def _rotary_store_kernel(
    projected,
    scales,
    bias,
    query_norm,
    key_norm,
    table,
    positions,
    locations,
    queries,
    keys,
    values,
    split_stride,
    eps,
    key_inverse,
    value_inverse,
    SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    REPLACES_NEW: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token, block of heads); a head's two halves are two tiles."""
    if PDL:
        gdc_launch_dependents()
    HALF: tl.constexpr = HEAD_DIM // 2
    ALL_HEADS: tl.constexpr = HEADS + 2 * KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    half = tl.arange(0, HALF_BLOCK)
    in_half = half < HALF
    exists = (head < ALL_HEADS)[:, None] & in_half[None, :]
    is_query = (head < HEADS)[:, None]
    is_value = (head >= HEADS + KV_HEADS)[:, None]
    column = head[:, None] * HEAD_DIM + half[None, :]

    # Constants of the step, so that only the projection is read behind the wait.
    position = tl.load(positions + token)
    location = tl.load(locations + token).to(tl.int64)
    cosines = tl.load(table + position * HEAD_DIM + half, mask=in_half, other=0.0)[None, :]
    sines = tl.load(table + position * HEAD_DIM + HALF + half, mask=in_half, other=0.0)[None, :]
    if HAS_NORMS:
        query_first = tl.load(query_norm + half, mask=in_half, other=0.0).to(tl.float32)
        query_second = tl.load(query_norm + HALF + half, mask=in_half, other=0.0).to(tl.float32)
        key_first = tl.load(key_norm + half, mask=in_half, other=0.0).to(tl.float32)
        key_second = tl.load(key_norm + HALF + half, mask=in_half, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()

    source = projected + token * (ALL_HEADS * HEAD_DIM) + column
    first = tl.load(source, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=exists, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLITS):
        part = source + split * split_stride
        first += tl.load(part, mask=exists, other=0.0).to(tl.float32)
        second += tl.load(part + HALF, mask=exists, other=0.0).to(tl.float32)
    if HAS_SCALES:
        row_scale = tl.load(scales + token)
        first *= row_scale
        second *= row_scale
    if HAS_BIAS:
        first += tl.load(bias + column, mask=exists, other=0.0)
        second += tl.load(bias + column + HALF, mask=exists, other=0.0)

    left, right = first, second
    if HAS_NORMS:
        square = tl.sum(first * first + second * second, axis=1)[:, None]
        scale = tl.rsqrt(square / HEAD_DIM + eps)
        left = first * scale * tl.where(is_query, query_first[None, :], key_first[None, :])
        right = second * scale * tl.where(is_query, query_second[None, :], key_second[None, :])
    rotated_left = left * cosines - right * sines
    rotated_right = right * cosines + left * sines

    target = queries + token * (HEADS * HEAD_DIM) + column
    out = queries.dtype.element_ty
    tl.store(target, rotated_left.to(out), mask=exists & is_query)
    tl.store(target + HALF, rotated_right.to(out), mask=exists & is_query)

    if REPLACES_NEW:
        out = projected.dtype.element_ty
        is_new = exists & (head >= HEADS)[:, None]
        tl.store(source, tl.where(is_value, first, rotated_left).to(out), mask=is_new)
        tl.store(source + HALF, tl.where(is_value, second, rotated_right).to(out), mask=is_new)

    TYPE: tl.constexpr = keys.dtype.element_ty
    row = location * (KV_HEADS * HEAD_DIM)
    is_key = exists & (head >= HEADS)[:, None] & (head < HEADS + KV_HEADS)[:, None]
    target = keys + row + (column - HEADS * HEAD_DIM)
    tl.store(target, to_stored(rotated_left, key_inverse, TYPE), mask=is_key)
    tl.store(target + HALF, to_stored(rotated_right, key_inverse, TYPE), mask=is_key)
    target = values + row + (column - (HEADS + KV_HEADS) * HEAD_DIM)
    tl.store(target, to_stored(first, value_inverse, TYPE), mask=exists & is_value)
    tl.store(target + HALF, to_stored(second, value_inverse, TYPE), mask=exists & is_value)


def rotary_store(
    projected: torch.Tensor,
    bias: torch.Tensor | None,
    norms: HeadNormWeights | None,
    target: RotaryTarget,
    *,
    dtype: torch.dtype,
    launch: Mapping[str, Any],
    scales: torch.Tensor | None = None,
    replaces_new: bool = False,
) -> torch.Tensor:
    """The queries in ``dtype``; see the module. ``launch``: of ``launching``."""
    splits = projected.shape[0] if projected.dim() == 3 else 1
    num_tokens, columns = projected.shape[-2:]
    kv_heads, head_dim = target.keys.shape[1:]
    heads = columns // head_dim - 2 * kv_heads
    _check(projected, heads, target)
    if scales is not None and scales.shape != (num_tokens,):
        message = f"{tuple(scales.shape)} scales are not one of each of {num_tokens} tokens"
        raise ValueError(message)
    queries = torch.empty((num_tokens, heads, head_dim), dtype=dtype, device=projected.device)
    if replaces_new and splits > 1:
        message = f"rotated keys and values cannot take the places of {splits} partial products"
        raise ValueError(message)
    if num_tokens == 0:
        return queries
    half_block = triton.next_power_of_2(head_dim // 2)
    all_heads = heads + 2 * kv_heads
    elements = _HEAD_ELEMENTS * (1 if num_tokens <= _FEW_TOKENS else 2)
    head_block = min(max(elements // half_block, 1), triton.next_power_of_2(all_heads))
    _rotary_store_kernel[(num_tokens, triton.cdiv(all_heads, head_block))](
        projected,
        projected if scales is None else scales,
        projected if bias is None else bias,
        projected if norms is None else norms.query,
        projected if norms is None else norms.key,
        target.table,
        target.positions,
        target.locations,
        queries if heads else projected,
        target.keys,
        target.values,
        num_tokens * columns,
        0.0 if norms is None else norms.eps,
        1.0 / target.key_scale,
        1.0 / target.value_scale,
        SPLITS=splits,
        HAS_SCALES=scales is not None,
        HAS_BIAS=bias is not None,
        HAS_NORMS=norms is not None,
        REPLACES_NEW=replaces_new,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF_BLOCK=half_block,
        HEAD_BLOCK=head_block,
        num_warps=2,
        **launch,
    )
    return queries


def _check(projected: torch.Tensor, heads: int, target: RotaryTarget) -> None:
    columns = projected.shape[-1]
    kv_heads, head_dim = target.keys.shape[1:]
    if head_dim % 2 or heads < 0 or columns != (heads + 2 * kv_heads) * head_dim:
        message = (
            f"{columns} projected columns do not hold queries, keys and values of heads of "
            f"{head_dim} with {kv_heads} KV heads; head_dim must be even"
        )
        raise ValueError(message)
    tensors = (projected, target.keys, target.values, target.table)
    if not all(tensor.is_contiguous() for tensor in tensors):
        message = "rotary_store needs contiguous projections, pool and table"
        raise ValueError(message)
    require_scaled(target.keys.dtype, target.key_scale, target.value_scale)
