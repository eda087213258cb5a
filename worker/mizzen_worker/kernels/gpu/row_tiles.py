"""Owns the tiles of experts' products with few rows, and the options that they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mizzen_worker.kernels.gpu.skinny_tile import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTiles:
    """Tiles of one kernel: ``narrow`` for blocks of at most its rows, ``wide`` for fuller ones.

    An expert that many tokens chose is read once for all rows of a wide tile. Both have the same
    columns, accumulators and warps; ``ahead`` is the narrow one's.
    """

    narrow: Tile
    wide: Tile

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for tiles that cannot be of one kernel."""
        same = [(tile.columns, tile.accumulators, tile.warps) for tile in (self.narrow, self.wide)]
        if same[0] != same[1] or self.narrow.rows > self.wide.rows:
            message = f"{self.narrow} and {self.wide} are not of one kernel"
            raise ValueError(message)

    def fitted(self, limit: int, element_size: int) -> "RowTiles":
        """See ``Tile.fitted``."""
        return RowTiles(
            narrow=self.narrow.fitted(limit, element_size),
            wide=self.wide.fitted(limit, element_size),
        )


def kernel_options(
    inputs: torch.Tensor, experts: int, tiles: RowTiles, columns: int, launch: Mapping[str, Any]
) -> dict[str, Any]:
    """Constants and options of a launch over ``experts`` matrices."""
    narrow, wide = tiles.narrow, tiles.wide
    return {
        "EXPERTS": experts,
        "COLUMNS": columns,
        "ROWS": narrow.rows,
        "DEPTH": narrow.depth,
        "STAGES": narrow.stages,
        "WIDE_ROWS": wide.rows,
        "WIDE_DEPTH": wide.depth,
        "WIDE_STAGES": wide.stages,
        "IS_WHOLE": inputs.shape[1] % max(narrow.depth, wide.depth) == 0,
        "AHEAD": narrow.ahead,
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": narrow.warps,
    } | dict(launch)
