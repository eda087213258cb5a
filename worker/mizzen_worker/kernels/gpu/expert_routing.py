"""Owns choosing experts of tokens and sorting the choices by expert; multiplies no matrix.

- ``choose_experts``: ``logits`` [splits, num_tokens, num_experts] float32 (partial products of the
  router, added here in their order) to experts int32 and weights float32, both [num_tokens,
  num_chosen], best first. Meaning, ties and NaN as in ``reference/moe.py``: a NaN never makes an
  expert that is not there.
- ``sort_by_expert``: experts [num_tokens, num_chosen] to ``order`` [pairs] int32, the pairs
  (token * num_chosen + slot) sorted by expert and in order within one, and ``offsets``
  [num_experts + 1] int32 of each expert's part of it. No atomics: the same on every run.

Any sizes; contiguous. Nothing is read before the wait of a dependent launch.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MAX_EXPERTS = 512
"""Logits are ranked by comparing all with all in one tile."""
_MAX_BLOCK = 4096
"""Pairs that a program looks at in one step."""
_FEW_TOKENS = 264
"""Two programs of many warps for each multiprocessor; with more tokens, fewer warps each."""


@triton.jit
def _sum_splits(logits, offset, size, exists, SPLITS: tl.constexpr):
    total = tl.load(logits + offset, mask=exists, other=-float("inf"))
    for split in tl.static_range(1, SPLITS):
        total += tl.load(logits + split * size + offset, mask=exists, other=0.0)
    return total


@triton.jit
def _choose_kernel(
    logits,
    chosen,
    weights,
    num_tokens,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token). The rank of an expert is the number of experts that are better."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0)
    size = num_tokens * EXPERTS
    expert = tl.arange(0, BLOCK)
    own = _sum_splits(logits, token * EXPERTS + expert, size, expert < EXPERTS, SPLITS)
    # The same logits along the other side of the tile: loaded again, not moved between threads.
    rival = tl.arange(0, BLOCK)
    other = _sum_splits(logits, token * EXPERTS + rival, size, rival < EXPERTS, SPLITS)
    is_nan = own != own  # noqa: PLR0124
    own_key = tl.where(is_nan, -float("inf"), own)
    # Infinity minus infinity is never formed: such rows have no weights that are numbers.
    top = tl.max(own_key, axis=0)
    is_infinite = (top == float("inf")) | (top == -float("inf"))
    is_finite = (own_key > -float("inf")) & (own_key < float("inf"))
    other_key = tl.where(other != other, -float("inf"), other)  # noqa: PLR0124
    is_better = (other_key[None, :] > own_key[:, None]) | (
        (other_key[None, :] == own_key[:, None]) & (rival[None, :] < expert[:, None])
    )
    rank = tl.sum(is_better.to(tl.int32), axis=1)
    # Places past the last expert are -inf and come after all experts, also after those of -inf.
    is_chosen = (rank < CHOSEN) & (expert < EXPERTS)
    distance = tl.where(is_finite, own_key, 0.0) - tl.where(is_infinite, 0.0, top)
    share = tl.where(is_finite, tl.exp(tl.minimum(distance, 0.0)), 0.0)
    counted = tl.where(is_chosen, share, 0.0) if IS_NORMALISED else share
    share = share / tl.maximum(tl.sum(counted, axis=0), 1e-30)
    has_no_weights = is_infinite | (tl.max(is_nan.to(tl.int32), axis=0) > 0)
    place = token * CHOSEN + rank
    tl.store(chosen + place, expert, mask=is_chosen)
    tl.store(weights + place, tl.where(has_no_weights, float("nan"), share), mask=is_chosen)


@triton.jit
def _sort_kernel(chosen, order, offsets, num_pairs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program (expert), and one more for the end: counts those before it, then places its own."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    place = 0
    for first in range(0, num_pairs, BLOCK):
        pair = first + index
        found = tl.load(chosen + pair, mask=pair < num_pairs, other=1 << 30)
        place += tl.sum((found < expert).to(tl.int32), axis=0)
    tl.store(offsets + expert, place)
    for first in range(0, num_pairs, BLOCK):
        pair = first + index
        found = tl.load(chosen + pair, mask=pair < num_pairs, other=1 << 30)
        is_own = (found == expert).to(tl.int32)
        until = tl.cumsum(is_own, axis=0)
        tl.store(order + place + until - 1, pair, mask=is_own > 0)
        place += tl.sum(is_own, axis=0)


def choose_experts(
    logits: torch.Tensor, num_chosen: int, *, is_normalised: bool, launch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and their weights; see the module."""
    splits, num_tokens, num_experts = logits.shape
    if not num_chosen <= num_experts <= MAX_EXPERTS or not logits.is_contiguous():
        message = (
            f"{num_chosen} of {num_experts} experts: at most {MAX_EXPERTS}, and as many as there "
            "are, can be chosen, from contiguous logits"
        )
        raise ValueError(message)
    shape, device = (num_tokens, num_chosen), logits.device
    chosen = torch.empty(shape, dtype=torch.int32, device=device)
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    if num_tokens:
        block = triton.next_power_of_2(num_experts)
        _choose_kernel[(num_tokens,)](
            logits,
            chosen,
            weights,
            num_tokens,
            SPLITS=splits,
            EXPERTS=num_experts,
            CHOSEN=num_chosen,
            IS_NORMALISED=is_normalised,
            BLOCK=block,
            num_warps=_choose_warps(num_tokens, block),
            **launch,
        )
    return chosen, weights


def _choose_warps(num_tokens: int, block: int) -> int:
    """About 32 comparisons a thread for few tokens, four times as many where there are many."""
    warps = max(block * block // (32 * 32), 1)
    return min(warps if num_tokens <= _FEW_TOKENS else max(warps // 4, 1), 16)


def sort_by_expert(
    chosen: torch.Tensor, num_experts: int, launch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order and offsets; see the module."""
    num_pairs = chosen.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    offsets = torch.empty(num_experts + 1, dtype=torch.int32, device=chosen.device)
    block = min(max(triton.next_power_of_2(num_pairs), 16), _MAX_BLOCK)
    _sort_kernel[(num_experts + 1,)](
        chosen,
        order,
        offsets,
        num_pairs,
        BLOCK=block,
        num_warps=max(min(block // 256, 8), 1),
        **launch,
    )
    return order, offsets
