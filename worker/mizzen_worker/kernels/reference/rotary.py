"""Owns the meaning of the rotary position embedding."""

import torch


def rotate(heads: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim / 2) of every head.

    ``heads`` [tokens, heads, head_dim]; ``table`` [tokens, 2, head_dim / 2] float32: cosines and
    sines at each token's position, rounded to the dtype of ``heads`` before use.
    """
    cosines, sines = table.to(heads.dtype).unsqueeze(2).unbind(1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
