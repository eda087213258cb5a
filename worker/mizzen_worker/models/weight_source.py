"""Owns the protocol through which a model asks for its weights; knows no file format."""

from typing import Protocol

import torch

from mizzen_worker.kernels.fp8_matrix import Fp8Matrix
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix


class WeightSource(Protocol):
    """Weights by their canonical names (those of the architecture in safetensors form)."""

    def vector(self, name: str, length: int) -> torch.Tensor:
        """A weight of exactly this length, float32 on the CPU; raises ``ModelLoadError``."""
        ...

    def matrix(
        self, name: str, rows: int, columns: int
    ) -> torch.Tensor | QuantisedMatrix | Fp8Matrix:
        """A matrix of exactly this size, in its stored precision; raises ``ModelLoadError``.

        Each call reads the file again: ask once, drop it early.
        """
        ...
