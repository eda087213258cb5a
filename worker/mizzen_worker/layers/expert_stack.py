"""Owns putting the matrices of experts into one tensor; decides no order of their rows."""

from collections.abc import Iterator

import torch


def stack_experts(matrices: Iterator[torch.Tensor], num_experts: int) -> torch.Tensor:
    """[num_experts, outputs, inputs] on the matrices' device; holds one matrix more at most.

    Raises ``ValueError`` where there are fewer or more matrices.
    """
    matrix = next(matrices)
    stacked = torch.empty((num_experts, *matrix.shape), dtype=matrix.dtype, device=matrix.device)
    stacked[0] = matrix
    for place, matrix in zip(stacked[1:], matrices, strict=True):
        place.copy_(matrix)
    return stacked
