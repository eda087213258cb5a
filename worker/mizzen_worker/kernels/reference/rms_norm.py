"""Owns the meaning of the RMS norm."""

import torch


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``hidden`` [tokens, size]; statistics in float32, result in the dtype of ``hidden``."""
    scale = row_scales(hidden, eps)[..., None]
    return weight.to(hidden.dtype) * (hidden.float() * scale).to(hidden.dtype)


def row_scales(hidden: torch.Tensor, eps: float) -> torch.Tensor:
    """What the norm multiplies each row with, [tokens] float32."""
    return torch.rsqrt(hidden.float().pow(2).mean(-1) + eps)
