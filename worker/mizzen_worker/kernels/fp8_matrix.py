"""Owns the meaning of FP8 matrices: numbers of e4m3, and scales of whole rows or of blocks.

``values`` [N, K] e4m3; ``scale`` [groups, N] float32, by which a row's columns are multiplied:
one group for whole rows, else one for each ``GROUP`` columns (K a multiple of it). Scales of blocks
of 128 x 128 are such groups whose rows agree: so rows may be put in any order. Plain torch.
"""

from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn
LARGEST = float(torch.finfo(FP8).max)
GROUP = 128
_LEAST_SCALE = 2.0**-40
"""So that a row of zeros has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Matrix:
    """One matrix as it is stored; see the module."""

    values: torch.Tensor
    scale: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.values.shape
        return int(rows), int(columns)

    def dequantise(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights [rows, columns]."""
        return dequantise(self.values, self.scale, dtype)


def scale_of_rows(scale: torch.Tensor, rows: int) -> torch.Tensor | None:
    """[1, rows] from one scale of all rows or one for each; None for other shapes."""
    if scale.numel() not in (1, rows):
        return None
    return scale.float().reshape(1, -1).expand(1, rows).contiguous()


def scale_of_blocks(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor | None:
    """[groups, rows] from scales [row blocks, column blocks]; None for other shapes."""
    if scale.shape != (-(-rows // GROUP), -(-columns // GROUP)):
        return None
    return scale.float().repeat_interleave(GROUP, 0)[:rows].t().contiguous()


def quantise_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scale; the largest of each row becomes the largest of the type."""
    scale = _scale_of(values.abs().amax(1).float())
    return _rounded(values, scale[:, None]), scale[None].contiguous()


def quantise_blocks(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Like ``quantise_rows``, by blocks of ``GROUP`` rows and columns; K must be a multiple."""
    rows, columns = values.shape
    blocks = -(-rows // GROUP)
    if columns % GROUP:
        message = f"{columns} columns are not whole blocks of {GROUP}; quantise by rows"
        raise ValueError(message)
    padded = torch.nn.functional.pad(values.abs(), (0, 0, 0, blocks * GROUP - rows))
    largest = padded.view(blocks, GROUP, columns // GROUP, GROUP).amax((1, 3)).float()
    scale = _scale_of(largest).repeat_interleave(GROUP, 0)[:rows]
    rounded = _rounded(values.view(rows, -1, GROUP), scale[:, :, None]).view(rows, columns)
    return rounded, scale.t().contiguous()


def dequantise(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in ``dtype``, rounded once."""
    dense = values.to(dtype)
    dense.view(len(values), len(scale), -1).mul_(scale.t().unsqueeze(2))
    return dense


def require_scale(values: torch.Tensor, scale: torch.Tensor | None) -> int:
    """How many groups a row has, 0 where the matrix has no scale; raises ``ValueError``."""
    if (scale is None) != (values.dtype != FP8):
        message = f"a matrix of {values.dtype} {'without' if scale is None else 'with'} a scale"
        raise ValueError(message)
    if scale is None:
        return 0
    rows, columns = values.shape
    groups = scale.shape[0]
    is_sized = scale.shape == (groups, rows) and (groups == 1 or groups * GROUP == columns)
    if not is_sized or scale.dtype != torch.float32 or not scale.is_contiguous():
        message = (
            f"scale {tuple(scale.shape)} {scale.dtype} of a matrix {tuple(values.shape)}: float32 "
            f"[1, rows] or [columns / {GROUP}, rows] is needed, contiguous"
        )
        raise ValueError(message)
    return groups


def _scale_of(largest: torch.Tensor) -> torch.Tensor:
    return (largest / LARGEST).clamp_(min=_LEAST_SCALE)


def _rounded(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (values.float() / scale).clamp_(-LARGEST, LARGEST).to(FP8)
