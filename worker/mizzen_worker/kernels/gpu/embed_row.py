"""Owns the embedding of one token; that of more is ``residual_norm.py``'s, with their norm.

Contract: rows contiguous; one program, the whole row in its registers. No kernel behind it begins
before its predecessor has ended.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.dependent_launch import let_next_begin, wait_for_previous
from mizzen_worker.kernels.gpu.residual_norm import norm_warps


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
    wait_for_previous(PDL)
    let_next_begin(PDL)
    token = tl.load(token_ptr)
    token = tl.minimum(tl.maximum(token, 0), num_tokens - 1)
    rk = tl.arange(0, BLOCK)
    row = tl.load(embedding_ptr + token.to(tl.int64) * K + rk, mask=rk < K)
    tl.store(output_ptr + rk, row, mask=rk < K)


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
        token,
        embedding,
        output,
        num_tokens,
        K=num_columns,
        BLOCK=triton.next_power_of_2(num_columns),
        num_warps=norm_warps(num_columns, 1),
        **launch,
    )
