"""Owns the sampling parameters of the rows of one step, as tensors; chooses no token."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """One entry per sampled row; all on the device of the logits."""

    temperatures: torch.Tensor
    """[n] float32; 0 means greedy."""
    top_k: torch.Tensor
    """[n] int64; 0 means no limit."""
    top_p: torch.Tensor
    """[n] float32."""
    min_p: torch.Tensor
    """[n] float32."""
    seeds: torch.Tensor
    """[n] int64."""
    positions: torch.Tensor
    """[n] int64: index of the token to choose in prompt + output."""
    forbidden: torch.Tensor
    """[n, width] int64: token ids that must not be chosen, -1 where unused."""
    is_all_greedy: bool
    """Host's knowledge that every temperature is 0."""
    has_forbidden: bool
    """Host's knowledge that some row may have forbidden ids."""
