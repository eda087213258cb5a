"""Owns the RMS norm of rows, together with what produces the rows; multiplies no matrix.

``row_scales`` gives one number per row instead, [rows] float32: what the norm multiplies a row
with. Whoever multiplies the rows as they are with a matrix scales its products by them, which moves
less than half as many bytes. The norms have three sources and one kernel, one program per row.
``width`` is any; rows are contiguous.

- ``embed_norm``: rows of the embedding [vocab, width] for ``token_ids`` [rows] int64;
- ``add_norm``: ``residual`` [rows, width] + the sum of ``partials`` [splits, rows, width] (any
  float dtype, in their order) + ``bias`` [width] float32. Written over ``residual``;
- ``rms_norm``: rows as they are.

Sums and statistics are float32. The hidden row is rounded to its dtype, and the norm is of the
rounded row. ``weight`` [width] None: the norm's weight is folded into the next matrix.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_FEW_ROWS = 256


@triton.jit
def _residual_norm_kernel(
    source,
    token_ids,
    partials,
    bias,
    weight,
    hidden,
    normed,
    split_stride,
    eps,
    IS_LOOKUP: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    STORES_HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row); ``hidden`` may be ``source``: a row is read before it is written."""
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    exists = column < WIDTH
    if HAS_WEIGHT:
        factor = tl.load(weight + column, mask=exists, other=0.0).to(tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + column, mask=exists, other=0.0)
    if PDL:
        gdc_wait()
    source_row = tl.load(token_ids + row).to(tl.int64) if IS_LOOKUP else row
    stored = tl.load(source + source_row * WIDTH + column, mask=exists, other=0.0)
    wide = stored.to(tl.float32)
    for split in tl.static_range(SPLITS):
        part = partials + split * split_stride + row * WIDTH + column
        wide += tl.load(part, mask=exists, other=0.0).to(tl.float32)
    if HAS_BIAS:
        wide += offset
    out = normed.dtype.element_ty
    rounded = wide.to(out)
    if STORES_HIDDEN:
        tl.store(hidden + row * WIDTH + column, rounded, mask=exists)
    wide = rounded.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    if HAS_WEIGHT:
        scaled = factor * scaled
    tl.store(normed + row * WIDTH + column, scaled.to(out), mask=exists)


@triton.jit
def _row_scales_kernel(
    source, scales, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program (row)."""
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    if PDL:
        gdc_wait()
    stored = tl.load(source + row * WIDTH + column, mask=column < WIDTH, other=0.0)
    wide = stored.to(tl.float32)
    tl.store(scales + row, tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps))


def embed_norm(
    embedding: torch.Tensor, token_ids: torch.Tensor, eps: float, launch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden rows and their norm, each [rows, width]."""
    hidden = torch.empty(
        (len(token_ids), embedding.shape[1]), dtype=embedding.dtype, device=embedding.device
    )
    normed = torch.empty_like(hidden)
    _launch(embedding, hidden, normed, eps, launch, token_ids=token_ids)
    return hidden, normed


def add_norm(
    residual: torch.Tensor,
    partials: torch.Tensor,
    eps: float,
    launch: Mapping[str, Any],
    *,
    bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """The norm of the new hidden rows, which replace ``residual``."""
    if partials.shape[1:] != residual.shape or not partials.is_contiguous():
        message = (
            f"partial products {tuple(partials.shape)} must be contiguous and have the rows and "
            f"columns of the residual {tuple(residual.shape)}"
        )
        raise ValueError(message)
    normed = torch.empty_like(residual)
    _launch(residual, residual, normed, eps, launch, partials=partials, bias=bias, weight=weight)
    return normed


def rms_norm(
    rows: torch.Tensor, eps: float, launch: Mapping[str, Any], *, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """The norm of rows [n, width]."""
    normed = torch.empty_like(rows)
    _launch(rows, None, normed, eps, launch, weight=weight)
    return normed


def row_scales(rows: torch.Tensor, eps: float, launch: Mapping[str, Any]) -> torch.Tensor:
    """Factors [n] float32 of the norm of rows [n, width]."""
    num_rows, width = rows.shape
    _require_contiguous(rows)
    scales = torch.empty(num_rows, dtype=torch.float32, device=rows.device)
    if num_rows:
        _row_scales_kernel[(num_rows,)](
            rows,
            scales,
            eps,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            num_warps=norm_warps(width, num_rows),
            **launch,
        )
    return scales


def _require_contiguous(rows: torch.Tensor) -> None:
    if not rows.is_contiguous():
        message = "rows to be normed must be contiguous"
        raise ValueError(message)


def _launch(
    source: torch.Tensor,
    hidden: torch.Tensor | None,
    normed: torch.Tensor,
    eps: float,
    launch: Mapping[str, Any],
    *,
    token_ids: torch.Tensor | None = None,
    partials: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
) -> None:
    rows, width = normed.shape
    _require_contiguous(source)
    if rows == 0:
        return
    _residual_norm_kernel[(rows,)](
        source,
        source if token_ids is None else token_ids,
        source if partials is None else partials,
        source if bias is None else bias,
        source if weight is None else weight,
        normed if hidden is None else hidden,
        normed,
        rows * width,
        eps,
        IS_LOOKUP=token_ids is not None,
        SPLITS=0 if partials is None else len(partials),
        HAS_BIAS=bias is not None,
        HAS_WEIGHT=weight is not None,
        STORES_HIDDEN=hidden is not None,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=norm_warps(width, rows),
        **launch,
    )


def norm_warps(width: int, rows: int) -> int:
    """Warps of one row, at most 16: 8 elements a thread, 16 where many rows run side by side."""
    block: int = triton.next_power_of_2(width)
    return min(max(block // (256 if rows <= _FEW_ROWS else 512), 1), 16)
