"""Owns the largest value of every block of columns and its lowest column; makes no logits.

``logits`` [rows, columns] float32 contiguous. Result as of ``HeadOutput``: a block with a NaN has
the value NaN.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_BLOCK = 4096


@triton.jit
def best_along(logits, AXIS: tl.constexpr):
    """Largest value along an axis (NaN if there is one) and its first index."""
    invalid = logits != logits  # noqa: PLR0124 - only NaN differs from itself
    # Comparisons with NaN are false, so a NaN would hide: infinity stands in for it.
    best, index = tl.max(tl.where(invalid, float("inf"), logits), axis=AXIS, return_indices=True)
    is_invalid = tl.max(invalid.to(tl.int32), axis=AXIS) > 0
    return tl.where(is_invalid, float("nan"), best), index


@triton.jit
def _block_best_kernel(
    logits,
    best_values,
    best_ids,
    columns,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, block of columns)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(logits + row * columns + column, mask=column < columns, other=-float("inf"))
    best, index = best_along(found, 0)
    target = row * tl.num_programs(1) + block
    tl.store(best_values + target, best)
    tl.store(best_ids + target, block * BLOCK + index)


def block_best(
    logits: torch.Tensor, launch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Best values [rows, blocks] float32 and their columns [rows, blocks] int32."""
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        message = f"block_best needs contiguous float32 logits, not {logits.dtype}"
        raise ValueError(message)
    rows, columns = logits.shape
    block = min(_BLOCK, triton.next_power_of_2(columns))
    blocks = triton.cdiv(columns, block)
    values = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    if rows:
        _block_best_kernel[(rows, blocks)](
            logits, values, ids, columns, BLOCK=block, num_warps=8, **launch
        )
    return values, ids
