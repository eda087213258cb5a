"""Owns making a dense tensor of a matrix, however it is stored; moves nothing to a device."""

import torch

from mizzen_worker.kernels.fp8_matrix import Fp8Matrix
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.layers.operations import StoredMatrix


def as_tensor(part: StoredMatrix) -> torch.Tensor:
    """[rows, columns] float32, or in the stored type where that is dense."""
    if isinstance(part, QuantisedMatrix):
        return torch.from_numpy(part.dequantise())
    if isinstance(part, Fp8Matrix):
        return part.dequantise(torch.float32)
    return part
