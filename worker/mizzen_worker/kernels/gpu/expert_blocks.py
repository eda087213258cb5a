"""Owns which block of rows of which expert a program works on; multiplies nothing.

Pairs of a token and a chosen expert are sorted by expert (``expert_routing.py``); an expert's pairs
are cut into blocks of so many rows, of which the last may not be full.
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
