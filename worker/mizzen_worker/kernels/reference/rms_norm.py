"""Owns the meaning of the RMS norm."""

import torch


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``hidden`` [tokens, size]; statistics in float32, result in the dtype of ``hidden``."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight.to(hidden.dtype) * (wide * scale).to(hidden.dtype)
