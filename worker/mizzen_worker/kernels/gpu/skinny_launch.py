"""Owns what every launch of a skinny product needs: checks, descriptors, options; no kernel."""

from collections.abc import Mapping
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.fp8_matrix import FP8
from mizzen_worker.kernels.gpu.skinny_tile import LINE, Tile


def require_sizes(inputs: torch.Tensor, matrix: torch.Tensor) -> tuple[int, int, int]:
    """Rows, outputs and depth of a product; raises ``ValueError`` where there can be none."""
    rows, depth = inputs.shape
    outputs, matrix_depth = matrix.shape
    if rows == 0 or depth != matrix_depth or matrix.dtype not in (inputs.dtype, FP8):
        message = (
            f"rows {tuple(inputs.shape)} {inputs.dtype} cannot be multiplied with a matrix "
            f"{tuple(matrix.shape)} {matrix.dtype}"
        )
        raise ValueError(message)
    is_aligned = depth * matrix.element_size() % 16 == 0
    if not (is_aligned and inputs.is_contiguous() and matrix.is_contiguous()):
        message = f"a product over {depth} columns needs contiguous rows of a multiple of 16 bytes"
        raise ValueError(message)
    return rows, outputs, depth


def batches(inputs: torch.Tensor, tile: Tile) -> tuple[TensorDescriptor, TensorDescriptor]:
    """For the tile's rows, and for more of them (the same where there are none)."""
    rows = TensorDescriptor.from_tensor(inputs, [tile.rows, tile.depth])
    if not tile.more:
        return rows, rows
    return rows, TensorDescriptor.from_tensor(inputs, [tile.more, tile.depth])


def tile_options(inputs: torch.Tensor, tile: Tile, launch: Mapping[str, Any]) -> dict[str, Any]:
    """Constants of the tile and options of the launch."""
    return {
        "ROWS": tile.rows,
        "MORE": tile.more,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "AHEAD": tile.ahead // LINE * LINE,
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
    } | dict(launch)
