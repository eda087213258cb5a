"""Owns ``silu(gate) * up`` over interleaved columns, where a library made the product.

``gate_up`` [rows, 2 * width] contiguous: gate 0, up 0, gate 1, up 1, ...; ``bias`` [2 * width]
float32 in the same order. Computed in float32, rounded once to the dtype of ``gate_up``.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_BLOCK = 1024


@triton.jit
def _silu_multiply_kernel(
    gate_up,
    bias,
    product,
    width,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, block of outputs)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    both = tl.load(gate_up + row * 2 * width + pair, mask=pair < 2 * width, other=0.0)
    wide = both.to(tl.float32)
    if HAS_BIAS:
        wide += tl.load(bias + pair, mask=pair < 2 * width, other=0.0)
    gate, up = tl.split(tl.reshape(wide, [BLOCK, 2]))
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = gate * tl.sigmoid(gate) * up
    tl.store(product + row * width + column, value.to(product.dtype.element_ty), column < width)


def silu_multiply(
    gate_up: torch.Tensor, bias: torch.Tensor | None, launch: Mapping[str, Any]
) -> torch.Tensor:
    """[rows, width] in the dtype of ``gate_up``."""
    rows, columns = gate_up.shape
    if columns % 2 or not gate_up.is_contiguous():
        message = f"gate and up must be contiguous pairs of columns, not {columns} columns"
        raise ValueError(message)
    width = columns // 2
    product = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return product
    block = min(_BLOCK, triton.next_power_of_2(width))
    _silu_multiply_kernel[(rows, triton.cdiv(width, block))](
        gate_up,
        gate_up if bias is None else bias,
        product,
        width,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=4,
        **launch,
    )
    return product
