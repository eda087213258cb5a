"""Owns causal attention of new tokens over paged keys and values; stores no KV, places no tiles.

Contract. All keys and values of the step, the new tokens' included, lie in the pool [positions,
num_kv_heads, head_dim], contiguous, of any float type; queries [num_tokens, num_heads, head_dim]
may be a view whose last two dimensions are contiguous; the result is [num_tokens, num_heads *
head_dim]. Any page size, group of heads and head size up to 256; tokens of no row are left as they
are. Nothing is read from the host: the same launch serves a captured graph, whose grid is the bound
of tiles of a step with so many tokens and rows.

A program computes one tile: for one KV head, the query heads that share it times as many
neighbouring tokens of one row as fit. Whole blocks of keys that every query of the tile sees come
first, without masks, through TMA where a block never crosses a page, else by pointers with the
page ids one block ahead; then the rest, masked. Later tiles of a row are longer and start first.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.attention_tile import EMPTY, IEEE, ScoreRule
from mizzen_worker.kernels.gpu.base_two import LOG2E
from mizzen_worker.kernels.gpu.extend_plan import ExtendPlan
from mizzen_worker.kernels.gpu.launching import has_tensor_copies


@triton.jit
def _absorb(
    state,
    q,
    keys,
    values,
    is_seen,
    scale,
    cap_scale,
    HAS_CAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of keys into the running maximum, sum and output (online softmax in base 2)."""
    highest, total, output = state
    scores = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision=PRECISION)
    if HAS_CAP:
        # tanh without overflow: the exponential goes to 0 or to infinity.
        scores = 2.0 / (1.0 + tl.exp2(scores * cap_scale)) - 1.0
    if IS_MASKED:
        # Infinite, as in ``attend_tile``: in a row whose first blocks are all masked, a finite
        # number times the scale, fused with taking away its rounded self, is no small difference.
        scores = tl.where(is_seen, scores, float("-inf"))
    now = tl.maximum(highest, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - now[:, None])
    shrink = tl.exp2(highest - now)
    total = total * shrink + tl.sum(weights, axis=1)
    output = tl.dot(
        weights.to(q.dtype),
        values.to(q.dtype),
        output * shrink[:, None],
        input_precision=PRECISION,
    )
    return now, total, output


# What steps place anywhere in one upload must not compile a variant for each alignment.
@triton.jit(
    do_not_specialize=["table_stride", "window"],
    do_not_specialize_on_alignment=["slots_ptr", "starts_ptr", "lengths_ptr"],
)
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    k_desc,
    v_desc,
    out_ptr,
    tiles_ptr,
    table_ptr,
    slots_ptr,
    starts_ptr,
    lengths_ptr,
    sinks_ptr,
    q_stride,
    table_stride,
    window,
    scale,
    cap_scale,
    value_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    row = tl.load(tiles_ptr + 2 * tile)
    if row >= 0:
        first = tl.load(tiles_ptr + 2 * tile + 1)
        begin = tl.load(starts_ptr + row)
        count = tl.load(starts_ptr + row + 1) - begin
        prefix = tl.load(lengths_ptr + row) - count
        pages_ptr = table_ptr + tl.load(slots_ptr + row) * table_stride
        # Query row i is token i // GROUP of the tile and head i % GROUP of the group.
        i = tl.arange(0, BM)
        token = first + i // GROUP
        is_query = (token < count) & (i < TOKENS * GROUP)
        position = prefix + token
        d = tl.arange(0, WIDTH)
        is_dim = d < DIM
        q_head = head * GROUP + i % GROUP
        q_offset = (begin + token).to(tl.int64) * q_stride + q_head * DIM
        q = tl.load(
            q_ptr + q_offset[:, None] + d[None, :],
            mask=is_query[:, None] & is_dim[None, :],
            other=0.0,
        )
        # Positions: [low, full) every query sees, [full, high) some do. Beyond high lies nothing of
        # this row, and what a page holds there may be anything, even NaN.
        high = prefix + tl.minimum(first + TOKENS, count)
        low = prefix * 0
        full = (prefix + first + 1) // BN * BN
        if HAS_WINDOW:
            low = tl.maximum(prefix + first - window + 1, 0)
            full = low // BN * BN
        j = tl.arange(0, BN)
        state = (
            tl.full([BM], EMPTY, tl.float32),
            tl.zeros([BM], tl.float32),
            tl.zeros([BM, WIDTH], tl.float32),
        )
        if HAS_TMA:
            page = tl.load(pages_ptr)
            for t0 in tl.range(0, full, BN, num_stages=STAGES):
                place = page * PAGE + t0 % PAGE
                page = tl.load(pages_ptr + (t0 + BN) // PAGE, mask=t0 + BN < full, other=0)
                keys = k_desc.load([place, head * DIM])
                values = v_desc.load([place, head * DIM])
                state = _absorb(
                    state,
                    q,
                    keys,
                    values,
                    None,
                    scale,
                    cap_scale,
                    HAS_CAP=HAS_CAP,
                    IS_MASKED=False,
                    PRECISION=PRECISION,
                )
        elif not HAS_WINDOW:
            page = tl.load(pages_ptr + j // PAGE, mask=j < full, other=0)
            for t0 in tl.range(0, full, BN, num_stages=STAGES):
                t = t0 + j
                place = (page.to(tl.int64) * PAGE + t % PAGE) * (KV_HEADS * DIM) + head * DIM
                page = tl.load(pages_ptr + (t + BN) // PAGE, mask=t + BN < full, other=0)
                offset = place[:, None] + d[None, :]
                keys = tl.load(k_ptr + offset, mask=is_dim[None, :], other=0.0)
                values = tl.load(v_ptr + offset, mask=is_dim[None, :], other=0.0)
                state = _absorb(
                    state,
                    q,
                    keys,
                    values,
                    None,
                    scale,
                    cap_scale,
                    HAS_CAP=HAS_CAP,
                    IS_MASKED=False,
                    PRECISION=PRECISION,
                )
        for t0 in tl.range(full, high, BN, num_stages=STAGES if HAS_WINDOW else 1):
            t = t0 + j
            is_there = (t >= low) & (t < high)
            pages = tl.load(pages_ptr + t // PAGE, mask=is_there, other=0)
            start = (pages.to(tl.int64) * PAGE + t % PAGE) * (KV_HEADS * DIM) + head * DIM
            offset = start[:, None] + d[None, :]
            is_loaded = is_there[:, None] & is_dim[None, :]
            keys = tl.load(k_ptr + offset, mask=is_loaded, other=0.0)
            values = tl.load(v_ptr + offset, mask=is_loaded, other=0.0)
            is_seen = is_there[None, :] & (t[None, :] <= position[:, None])
            if HAS_WINDOW:
                is_seen &= t[None, :] > (position - window)[:, None]
            state = _absorb(
                state,
                q,
                keys,
                values,
                is_seen,
                scale,
                cap_scale,
                HAS_CAP=HAS_CAP,
                IS_MASKED=True,
                PRECISION=PRECISION,
            )
        highest, total, output = state
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + q_head, mask=is_query, other=0.0).to(tl.float32)
            sink = sink * LOG2E
            now = tl.maximum(highest, sink)
            total = total * tl.exp2(highest - now) + tl.exp2(sink - now)
            output = output * tl.exp2(highest - now)[:, None]
        output = output * (value_scale / tl.where(total > 0, total, 1.0))[:, None]
        out_offset = ((begin + token).to(tl.int64) * (KV_HEADS * GROUP) + q_head) * DIM
        tl.store(
            out_ptr + out_offset[:, None] + d[None, :],
            output.to(out_ptr.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )


def _descriptor(cache: torch.Tensor, block: int, head_dim: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(cache.flatten(1), [block, head_dim])


def _has_tma(plan: ExtendPlan, cache: torch.Tensor, window: int | None) -> bool:
    """Whether blocks of keys can be boxes of a tensor map: within a page, and whole heads."""
    width = plan.heads.head_dim * cache.element_size()
    is_box = plan.heads.head_dim == triton.next_power_of_2(plan.heads.head_dim) and width >= 32
    is_whole = plan.rows.page_size % plan.tile.key_block == 0
    return window is None and is_box and is_whole and has_tensor_copies()


def _require_fitting(
    plan: ExtendPlan, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    heads = plan.heads
    expected = (heads.num_heads, heads.head_dim)
    if queries.shape[1:] != expected or queries.stride()[1:] != (heads.head_dim, 1):
        message = (
            f"queries {tuple(queries.shape)} with strides {queries.stride()} are not [tokens, "
            f"{heads.num_heads}, {heads.head_dim}] with contiguous heads"
        )
        raise ValueError(message)
    for cache in (keys, values):
        if cache.shape[1:] != (heads.num_kv_heads, heads.head_dim) or not cache.is_contiguous():
            message = (
                f"a cache {tuple(cache.shape)} is not a contiguous [positions, "
                f"{heads.num_kv_heads}, {heads.head_dim}]"
            )
            raise ValueError(message)
    if heads.head_dim > 256:
        message = f"head size {heads.head_dim} is above 256, the most this kernel holds"
        raise ValueError(message)


def extend_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: ExtendPlan,
    rule: ScoreRule,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of every new token of the plan's rows: [num_tokens, num_heads * head_dim].

    ``out`` is written where rows have tokens; None makes one, otherwise uninitialised.
    """
    _require_fitting(plan, queries, keys, values)
    if out is None:
        size = plan.heads.num_heads * plan.heads.head_dim
        out = torch.empty(len(queries), size, dtype=queries.dtype, device=queries.device)
    if not len(plan.tiles):
        return out
    heads, tile, rows, cap = plan.heads, plan.tile, plan.rows, rule.soft_cap
    scale = rule.scale * rule.key_scale
    has_tma = _has_tma(plan, keys, rule.window)
    _attend[(heads.num_kv_heads, len(plan.tiles))](
        queries,
        keys,
        values,
        _descriptor(keys, tile.key_block, heads.head_dim) if has_tma else None,
        _descriptor(values, tile.key_block, heads.head_dim) if has_tma else None,
        out,
        plan.tiles,
        rows.page_table,
        rows.row_slots,
        rows.row_starts,
        rows.row_lengths,
        rule.sinks,
        queries.stride(0),
        rows.page_table.stride(0),
        rule.window or 0,
        (cap or scale) * LOG2E.value,
        -2 * LOG2E.value * scale / cap if cap else 0.0,
        rule.value_scale,
        KV_HEADS=heads.num_kv_heads,
        GROUP=heads.group,
        DIM=heads.head_dim,
        WIDTH=triton.next_power_of_2(heads.head_dim),
        PAGE=rows.page_size,
        TOKENS=tile.query_rows // heads.group,
        BM=tile.query_rows,
        BN=tile.key_block,
        STAGES=tile.num_stages,
        HAS_WINDOW=rule.window is not None,
        HAS_CAP=cap > 0,
        HAS_SINKS=rule.sinks is not None,
        HAS_TMA=has_tma,
        PRECISION=IEEE,
        num_warps=tile.num_warps,
    )
    return out
