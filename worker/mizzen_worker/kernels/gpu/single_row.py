"""Owns the embedding and the RMS norm of one row; for more rows there are other kernels.

Contract: rows contiguous; one program each, the whole row in its registers.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.gemv import begin_dependent


@triton.jit
def _embed_kernel(
    token_ptr,
    embedding_ptr,
    output_ptr,
    num_tokens,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    begin_dependent(PDL)
    token = tl.load(token_ptr)
    token = tl.minimum(tl.maximum(token, 0), num_tokens - 1)
    rk = tl.arange(0, BLOCK)
    row = tl.load(embedding_ptr + token.to(tl.int64) * K + rk, mask=rk < K)
    tl.store(output_ptr + rk, row, mask=rk < K)


@triton.jit
def _norm_kernel(
    x_ptr,
    weight_ptr,
    output_ptr,
    eps,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    rk = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + rk, mask=rk < K, other=0.0).to(tl.float32)
    begin_dependent(PDL)
    x = tl.load(x_ptr + rk, mask=rk < K, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / K + eps)
    tl.store(output_ptr + rk, (x * factor * weight).to(output_ptr.dtype.element_ty), mask=rk < K)


def _launch_shape(num_columns: int) -> dict[str, int]:
    """One program; eight elements a thread where the row is long enough."""
    block = triton.next_power_of_2(num_columns)
    return {"K": num_columns, "BLOCK": block, "num_warps": max(1, min(16, block // 256))}


def embed_row(
    token: torch.Tensor,
    embedding: torch.Tensor,
    output: torch.Tensor,
    *,
    launch: Mapping[str, Any],
) -> None:
    """``output`` [hidden] = the row of ``embedding`` [tokens, hidden] that ``token`` [1] names.

    An id outside the table (only a masked row has one) takes the nearest row.
    """
    num_tokens, num_columns = embedding.shape
    if output.numel() != num_columns or output.dtype != embedding.dtype:
        message = f"an embedding of {num_columns} {embedding.dtype} does not fit {output.shape}"
        raise ValueError(message)
    _embed_kernel[(1,)](
        token, embedding, output, num_tokens, **_launch_shape(num_columns), **launch
    )


def norm_row(
    x: torch.Tensor,
    weight: torch.Tensor,
    output: torch.Tensor,
    *,
    eps: float,
    launch: Mapping[str, Any],
) -> None:
    """``output`` [size] = RMS norm of ``x`` [size], times ``weight`` [size]."""
    if not x.numel() == weight.numel() == output.numel():
        message = f"RMS norm of {x.numel()} values by {weight.numel()} weights"
        raise ValueError(message)
    _norm_kernel[(1,)](x, weight, output, eps, **_launch_shape(x.numel()), **launch)
