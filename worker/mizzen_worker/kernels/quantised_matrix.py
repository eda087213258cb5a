"""Owns the one in-memory form of a block-quantised matrix; knows no file format and no kernel.

Every supported block format is affine inside a block of ``block_size`` neighbouring columns:
``weight = scale * code + minimum`` (``minimum`` absent for symmetric formats, whose codes are
signed). A row of the matrix is one output of a linear layer, or one token of an embedding.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.integer[Any]]
"""int8 or uint8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedMatrix:
    """One matrix as integer codes and per-block scales.

    ``codes`` [rows, columns], int8 when symmetric, uint8 otherwise; ``scales`` [rows, blocks]
    float32; ``minimums`` [rows, blocks] float32 or None; ``code_bits`` is the number of bits that
    the codes need (so that 4-bit codes can be packed two in a byte).
    """

    codes: Codes
    scales: npt.NDArray[np.float32]
    minimums: npt.NDArray[np.float32] | None
    block_size: int
    code_bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.codes.shape
        return int(rows), int(columns)

    def take_rows(self, rows: npt.NDArray[np.int64]) -> "QuantisedMatrix":
        """A new matrix of these rows, in this order."""
        return QuantisedMatrix(
            codes=self.codes[rows],
            scales=self.scales[rows],
            minimums=None if self.minimums is None else self.minimums[rows],
            block_size=self.block_size,
            code_bits=self.code_bits,
        )

    def take_columns(self, first: int, after: int) -> "QuantisedMatrix":
        """A new matrix of these columns; raises ``ValueError`` where they cut a block."""
        if first % self.block_size or after % self.block_size:
            message = f"columns {first} to {after} cut a block of {self.block_size}"
            raise ValueError(message)
        blocks = slice(first // self.block_size, after // self.block_size)
        return QuantisedMatrix(
            codes=self.codes[:, first:after],
            scales=self.scales[:, blocks],
            minimums=None if self.minimums is None else self.minimums[:, blocks],
            block_size=self.block_size,
            code_bits=self.code_bits,
        )

    def dequantise(self) -> npt.NDArray[np.float32]:
        """The weights, [rows, columns] float32; the meaning of this type."""
        rows, columns = self.shape
        blocked = self.codes.reshape(rows, columns // self.block_size, self.block_size)
        weights = blocked.astype(np.float32) * self.scales[:, :, None]
        if self.minimums is not None:
            weights += self.minimums[:, :, None]
        return weights.reshape(rows, columns)
