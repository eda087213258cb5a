"""Owns which block of rows of which expert a program works on; multiplies nothing.

Pairs of a token and a chosen expert are sorted by expert (``expert_routing.py``); where tokens are
few, a program finds those of its expert in ``slots`` instead. An expert's pairs are cut into blocks
of so many rows, of which the last may not be full.
"""

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.skinny_tile import Tile


@triton.jit
def load_blocks(offsets, EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Begin and end of every expert's places, and how many blocks of rows there are up to it."""
    expert = tl.arange(0, EXPERTS_BLOCK)
    is_there = expert < EXPERTS
    begins = tl.load(offsets + expert, mask=is_there, other=0)
    ends = tl.load(offsets + expert + 1, mask=is_there, other=0)
    return begins, ends, tl.cumsum(tl.cdiv(ends - begins, ROWS), axis=0)


@triton.jit
def find_block(
    begins,
    ends,
    until,
    block,
    EXPERTS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Expert of a block of rows (not below EXPERTS past the last one), its first place, the end."""
    expert = tl.arange(0, EXPERTS_BLOCK)
    found = tl.sum((until <= block).to(tl.int32), axis=0)
    is_found = expert == found
    blocks = tl.cdiv(ends - begins, ROWS)
    first = tl.sum(tl.where(is_found, begins + (block - until + blocks) * ROWS, 0), axis=0)
    return found, first, tl.sum(tl.where(is_found, ends, 0), axis=0)


@triton.jit
def count_pairs(slots, expert, num_tokens, TOKENS: tl.constexpr):
    """How many tokens chose an expert."""
    count = 0
    for begin in range(0, num_tokens, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        chosen_in = tl.load(slots + expert * num_tokens + token, mask=token < num_tokens, other=0)
        count += tl.sum((chosen_in > 0).to(tl.int32), axis=0)
    return count


@triton.jit
def find_pairs(
    slots,
    expert,
    num_tokens,
    first,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """[ROWS] of an expert's pairs, in the order of tokens, from the ``first`` on; 0 past the last.

    A pair's place is the number of tokens before it that chose the expert.
    """
    wanted = first + 1 + tl.arange(0, ROWS)
    pair = tl.zeros([ROWS], tl.int32)
    before = 0
    for begin in range(0, num_tokens, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        chosen_in = tl.load(slots + expert * num_tokens + token, mask=token < num_tokens, other=0)
        chosen_in = chosen_in.to(tl.int32)
        is_own = chosen_in > 0
        until = before + tl.cumsum(is_own.to(tl.int32), axis=0)
        is_wanted = is_own[:, None] & (until[:, None] == wanted[None, :])
        own = token * CHOSEN + chosen_in - 1
        pair += tl.sum(tl.where(is_wanted, own[:, None], 0), axis=0)
        before += tl.sum(is_own.to(tl.int32), axis=0)
    return pair


def max_blocks(pairs: int, experts: int, tile: Tile) -> int:
    """Most blocks of rows: every expert has at most one that is not full."""
    return pairs // tile.rows + min(experts, pairs)


def require_sizes(inputs: torch.Tensor, matrices: torch.Tensor, num_rows: int) -> None:
    """Raise ``ValueError`` where rows and experts' matrices cannot be multiplied."""
    depth = matrices.shape[2]
    is_aligned = depth * inputs.element_size() % 16 == 0
    if inputs.shape != (num_rows, depth) or inputs.dtype != matrices.dtype or not is_aligned:
        message = (
            f"rows {tuple(inputs.shape)} {inputs.dtype} of {num_rows} cannot be multiplied with "
            f"experts {tuple(matrices.shape)} {matrices.dtype}: one dtype, and one depth that is a "
            "multiple of 16 bytes, are needed"
        )
        raise ValueError(message)
    if not (inputs.is_contiguous() and matrices.is_contiguous()):
        message = "rows and matrices of experts must be contiguous"
        raise ValueError(message)


def require_slots(slots: torch.Tensor, experts: int, num_tokens: int) -> None:
    """Raise ``ValueError`` where slots are not those of these experts and tokens."""
    if slots.shape != (experts, num_tokens) or not slots.is_contiguous():
        message = (
            f"slots {tuple(slots.shape)} are not those of {experts} experts and {num_tokens} tokens"
        )
        raise ValueError(message)
