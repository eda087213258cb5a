"""Owns the meaning of a projection behind an RMS norm whose weight is in its columns."""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)


def normed_linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float | None
) -> torch.Tensor:
    """``hidden`` [tokens, inputs] to [tokens, outputs] float32; ``eps`` None: no norm."""
    wide = hidden.float()
    if eps is not None:
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return F.linear(wide, weight.float(), bias)
