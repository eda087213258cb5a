"""Owns the embedding of tokens where a device has some rows of the table only; knows no ranks.

Contract: rows contiguous; one program a token, the whole row in its registers.
"""

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.residual_norm import norm_warps


@triton.jit
def _embed_own_kernel(
    token_ptr,
    embedding_ptr,
    output_ptr,
    first,
    num_own,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token)."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(token_ptr + number) - first
    rk = tl.arange(0, BLOCK)
    nearest = tl.minimum(tl.maximum(row, 0), num_own - 1).to(tl.int64)
    values = tl.load(embedding_ptr + nearest * K + rk, mask=rk < K, other=0.0)
    values = tl.where((row >= 0) & (row < num_own), values, 0.0)
    tl.store(output_ptr + number * K + rk, values, mask=rk < K)


def embed_own(token_ids: torch.Tensor, embedding: torch.Tensor, first: int) -> torch.Tensor:
    """Rows [tokens, hidden] of a table of which ``embedding`` has those from ``first`` on.

    Tokens whose rows it does not have get zeros.
    """
    num_own, width = embedding.shape
    output = embedding.new_empty(len(token_ids), width)
    if len(token_ids):
        _embed_own_kernel[(len(token_ids),)](
            token_ids,
            embedding,
            output,
            first,
            num_own,
            K=width,
            BLOCK=triton.next_power_of_2(width),
            num_warps=norm_warps(width, len(token_ids)),
        )
    return output
