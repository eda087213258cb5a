"""Owns choosing experts of tokens and sorting the choices by expert; multiplies no matrix.

- ``choose_experts``: ``logits`` [splits, num_tokens, num_experts] float32 (partial products of the
  router, added here in their order) to experts int32 and weights float32, both [num_tokens,
  num_chosen], best first. Meaning, ties and NaN as in ``reference/moe.py``: a NaN never makes an
  expert that is not there. Tokens that only fill up a captured step (``Padding``) take the choice
  of the first token, so that no expert is read for them alone.
  ``slots`` [num_experts, num_tokens] uint8, where it is given, gets 1 + the slot in which a token
  chose an expert, 0 where it did not: few tokens need no more sorting than that.
- ``sort_by_expert``, for many tokens: experts [num_tokens, num_chosen] to ``order`` [pairs] int32,
  the pairs (token * num_chosen + slot) sorted by expert and in order within one, and ``offsets``
  [num_experts + 1] int32 of each expert's part of it. No atomics: the same on every run.

Any sizes; contiguous. Nothing is read before the wait of a dependent launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

MAX_EXPERTS = 512
"""One warp holds the logits of a token."""
_MAX_SLOTS = 255
"""What a byte of ``slots`` can tell."""
_MAX_BLOCK = 8192
"""Pairs that a program looks at in one step; a step costs about as much for few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Tells which tokens a step has only to be full: their ``locations`` are below ``first``.

    ``locations`` [num_tokens] int64 of their KV; those of page 0 belong to nobody.
    """

    locations: torch.Tensor
    first: int


@triton.jit
def _sum_splits(logits, offset, size, exists, SPLITS: tl.constexpr):
    total = tl.load(logits + offset, mask=exists, other=-float("inf"))
    for split in tl.static_range(1, SPLITS):
        total += tl.load(logits + split * size + offset, mask=exists, other=0.0)
    return total


@triton.jit
def _choose_kernel(
    logits,
    locations,
    first_location,
    chosen,
    weights,
    slots,
    num_tokens,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token) of one warp: the best, and again the best without it, by shuffles alone.

    Logits are compared as integers of the same order, which a warp reduces in one instruction.
    """
    LOWEST: tl.constexpr = -(2**31)
    MINUS_INFINITY: tl.constexpr = -0x7F800001
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    exists = expert < EXPERTS
    source = token
    if HAS_PADDING:
        source = tl.where(tl.load(locations + token) < first_location, 0, token)
    own = _sum_splits(logits, source * EXPERTS + expert, num_tokens * EXPERTS, exists, SPLITS)
    own = tl.where(own == 0.0, 0.0, own)  # -0 is no lower than 0
    is_nan = own != own  # noqa: PLR0124
    bits = own.to(tl.int32, bitcast=True)
    key = tl.where(is_nan, MINUS_INFINITY, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    key = tl.where(exists, key, LOWEST)
    top_key = tl.max(key, axis=0)
    slot = tl.arange(0, SLOTS)
    ids = tl.zeros([SLOTS], tl.int32)
    keys = tl.zeros([SLOTS], tl.int32)
    chosen_in = tl.zeros([BLOCK], tl.int32)
    for place in range(CHOSEN):
        best = tl.max(key, axis=0)
        index = tl.min(tl.where(key == best, expert, BLOCK), axis=0)
        ids = tl.where(slot == place, index, ids)
        keys = tl.where(slot == place, best, keys)
        key = tl.where(expert == index, LOWEST, key)
        chosen_in = tl.where(expert == index, place + 1, chosen_in)
    if HAS_SLOTS:
        target = slots + expert * num_tokens + token
        tl.store(target, chosen_in.to(slots.dtype.element_ty), mask=exists)
    top = (top_key ^ ((top_key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    value = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    has_nan = tl.max(is_nan.to(tl.int32), axis=0) > 0
    # Infinity minus infinity is never formed: such rows have no weights that are numbers.
    has_weights = (top > -float("inf")) & (top < float("inf")) & (has_nan == 0)
    top = tl.where(has_weights, top, 0.0)
    share = _share(value, top, slot < CHOSEN)
    total = tl.sum(share if IS_NORMALISED else _share(own, top, exists), axis=0)
    share = share / tl.maximum(total, 1e-30)
    target = token * CHOSEN + slot
    tl.store(chosen + target, ids, mask=slot < CHOSEN)
    tl.store(weights + target, tl.where(has_weights, share, float("nan")), mask=slot < CHOSEN)


@triton.jit
def _share(value, top, counts):
    """exp(value - top), 0 where it does not count or is of no finite value."""
    is_finite = counts & (value > -float("inf")) & (value < float("inf"))
    distance = tl.minimum(tl.where(is_finite, value, 0.0) - top, 0.0)
    return tl.where(is_finite, tl.exp(distance), 0.0)


@triton.jit
def _sort_kernel(
    chosen,
    order,
    offsets,
    tally,
    num_pairs,
    HAS_TALLY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (expert), and one more for the end: counts those before it, then places its own."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pair = first + index
        found = tl.load(chosen + pair, mask=pair < num_pairs, other=1 << 30)
        before += (found < expert).to(tl.int32)
    place = tl.sum(before, axis=0)
    begin = place
    tl.store(offsets + expert, place)
    for first in range(0, num_pairs, BLOCK):
        pair = first + index
        found = tl.load(chosen + pair, mask=pair < num_pairs, other=1 << 30)
        is_own = (found == expert).to(tl.int32)
        until = tl.cumsum(is_own, axis=0)
        tl.store(order + place + until - 1, pair, mask=is_own > 0)
        place += tl.sum(is_own, axis=0)
    if HAS_TALLY:
        is_end = expert == tl.num_programs(0) - 1
        is_read = (place > begin) | is_end
        tl.atomic_add(tally + is_end.to(tl.int32), is_read.to(tl.int32), sem="relaxed")


def choose_experts(
    logits: torch.Tensor,
    num_chosen: int,
    *,
    is_normalised: bool,
    launch: Mapping[str, Any],
    padding: Padding | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and their weights; fills ``slots``; see the module."""
    splits, num_tokens, num_experts = logits.shape
    if not num_chosen <= num_experts <= MAX_EXPERTS or not logits.is_contiguous():
        message = (
            f"{num_chosen} of {num_experts} experts: at most {MAX_EXPERTS}, and as many as there "
            "are, can be chosen, from contiguous logits"
        )
        raise ValueError(message)
    shape, device = (num_tokens, num_chosen), logits.device
    if slots is not None and (slots.shape != (num_experts, num_tokens) or num_chosen > _MAX_SLOTS):
        message = (
            f"slots {tuple(slots.shape)} for {num_chosen} of {num_experts} experts of {num_tokens} "
            f"tokens: one of each expert and token, and at most {_MAX_SLOTS} chosen, are needed"
        )
        raise ValueError(message)
    chosen = torch.empty(shape, dtype=torch.int32, device=device)
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    if num_tokens:
        _choose_kernel[(num_tokens,)](
            logits,
            chosen if padding is None else padding.locations,
            0 if padding is None else padding.first,
            chosen,
            weights,
            chosen if slots is None else slots,
            num_tokens,
            SPLITS=splits,
            EXPERTS=num_experts,
            CHOSEN=num_chosen,
            IS_NORMALISED=is_normalised,
            HAS_PADDING=padding is not None,
            HAS_SLOTS=slots is not None,
            BLOCK=max(triton.next_power_of_2(num_experts), 2),
            SLOTS=max(triton.next_power_of_2(num_chosen), 2),
            num_warps=1,
            **launch,
        )
    return chosen, weights


def sort_by_expert(
    chosen: torch.Tensor,
    num_experts: int,
    launch: Mapping[str, Any],
    tally: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order and offsets; see the module. ``tally`` as of ``ExpertTally`` is added to."""
    num_pairs = chosen.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    offsets = torch.empty(num_experts + 1, dtype=torch.int32, device=chosen.device)
    block = min(max(triton.next_power_of_2(num_pairs), 16), _MAX_BLOCK)
    _sort_kernel[(num_experts + 1,)](
        chosen,
        order,
        offsets,
        offsets if tally is None else tally,
        num_pairs,
        HAS_TALLY=tally is not None,
        BLOCK=block,
        num_warps=max(min(block // 256, 16), 1),
        **launch,
    )
    return order, offsets
