"""Owns the protocols through which a model or a rank asks for weights; knows no file format."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring rows and columns of a matrix; None: all of them."""

    rows: range | None = None
    columns: range | None = None


WHOLE = Part()


def span(part: range | None) -> slice:
    """The index of one side of a part."""
    return slice(None) if part is None else slice(part.start, part.stop)


class PartialWeightSource(WeightSource, Protocol):
    """A ``WeightSource`` that reads no more of a weight than is asked for.

    Sizes are those of the whole weight. Raises ``ModelLoadError`` for columns that cut a block of a
    quantised matrix.
    """

    def vector(self, name: str, length: int, part: range | None = None) -> torch.Tensor:
        """See ``WeightSource``; the values ``part``, None for all."""
        ...

    def matrix(
        self, name: str, rows: int, columns: int, part: Part = WHOLE
    ) -> torch.Tensor | QuantisedMatrix | Fp8Matrix:
        """See ``WeightSource``."""
        ...
