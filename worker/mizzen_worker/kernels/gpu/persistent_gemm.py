"""Owns the product of gate and up with SwiGLU in its epilogue, for many tokens; packs no weights.

Contract. ``inputs`` [num_tokens, size] and ``weight`` [2 * inner, size], contiguous, one float
type, rows of the weight gate 0, up 0, gate 1, ...; ``scales`` [num_tokens] float32, by which a
token's sums are multiplied first (of ``row_scales``, where the inputs come without their norm);
``bias`` [2 * inner] float32 in the order of the rows. The result [num_tokens, inner] is silu(gate)
* up of float32 sums, rounded once. size and inner must be multiples of 16 bytes, which tensor maps
need, and the device must have those (SM 90 and later): ``is_served``. Elsewhere the library's
product and a kernel for SwiGLU are faster.

A persistent kernel: one program a multiprocessor walks over output tiles, in groups of row blocks
so that neighbours in time share weights in L2. All tiles come and go through TMA, which clips at
the borders. Gate and up lie side by side in one thread's accumulator, so splitting moves nothing.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.launching import has_tensor_copies, num_multiprocessors


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTile:
    """``rows`` tokens times ``columns`` weight rows, ``depth`` at a time; powers of two."""

    rows: int
    columns: int
    depth: int
    num_stages: int
    num_warps: int
    group: int = 16


WIDE = GemmTile(rows=128, columns=256, depth=64, num_stages=3, num_warps=8)
"""The best on an H200 for whole chunks."""
NARROW = GemmTile(rows=128, columns=128, depth=64, num_stages=4, num_warps=4)
"""Where tiles of the other would leave multiprocessors idle in the last round."""
_NARROW_SHARE = 0.85
"""Speed of a narrow tile beside a wide one, per product."""
FLOAT32 = GemmTile(rows=64, columns=64, depth=32, num_stages=2, num_warps=4)


@triton.jit
def _place(tile, num_row_tiles, num_column_tiles, GROUP: tl.constexpr):
    in_group = GROUP * num_column_tiles
    first = (tile // in_group) * GROUP
    height = tl.minimum(num_row_tiles - first, GROUP)
    return first + (tile % in_group) % height, (tile % in_group) // height


# Not specialised: any number of tokens runs the same code.
@triton.jit(do_not_specialize=["num_tokens"])
def _swiglu_gemm(
    inputs,
    weight,
    output,
    scales_ptr,
    bias_ptr,
    num_tokens,
    num_columns,
    size,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    num_row_tiles = tl.cdiv(num_tokens, BM)
    num_column_tiles = tl.cdiv(num_columns, BN)
    # In the flattened loop the epilogue of a tile runs beside the products of the next one, so it
    # counts tiles of its own.
    done = tl.program_id(0) - PROGRAMS
    for tile in tl.range(
        tl.program_id(0), num_row_tiles * num_column_tiles, PROGRAMS, flatten=True
    ):
        m, n = _place(tile, num_row_tiles, num_column_tiles, GROUP)
        sums = tl.zeros([BM, BN], tl.float32)
        for k in tl.range(0, size, BK, num_stages=STAGES):
            x = inputs.load([m * BM, k])
            w = weight.load([n * BN, k])
            sums = tl.dot(x, w.T, sums, input_precision=PRECISION)
        done += PROGRAMS
        m_done, n_done = _place(done, num_row_tiles, num_column_tiles, GROUP)
        if HAS_SCALES:
            token = m_done * BM + tl.arange(0, BM)
            sums *= tl.load(scales_ptr + token, mask=token < num_tokens, other=0.0)[:, None]
        if HAS_BIAS:
            column = n_done * BN + tl.arange(0, BN)
            sums += tl.load(bias_ptr + column, mask=column < num_columns, other=0.0)[None, :]
        gate, up = tl.split(tl.reshape(sums, [BM, BN // 2, 2]))
        product = gate * tl.sigmoid(gate) * up
        output.store([m_done * BM, n_done * (BN // 2)], product.to(output.dtype))


def is_served(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the device has tensor maps and they can hold rows of inputs and of the result."""
    size = inputs.element_size()
    return (
        has_tensor_copies()
        and inputs.shape[1] * size % 16 == 0
        and weight.shape[0] // 2 * size % 16 == 0
    )


def choose_tile(num_tokens: int, num_columns: int, dtype: torch.dtype) -> GemmTile:
    """The tile that needs the least time in whole rounds of the multiprocessors."""
    if dtype.itemsize > 2:
        return FLOAT32
    wide, narrow = (_rounds(num_tokens, num_columns, tile) for tile in (WIDE, NARROW))
    # A round of narrow tiles is half a round of wide ones; two of them share a multiprocessor's
    # time, so they do not run at once.
    return WIDE if wide <= narrow / 2 / _NARROW_SHARE else NARROW


def _rounds(num_tokens: int, num_columns: int, tile: GemmTile) -> int:
    tiles = -(-num_tokens // tile.rows) * -(-num_columns // tile.columns)
    return -(-tiles // num_multiprocessors())


def swiglu_gemm(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    tile: GemmTile | None = None,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """``silu(gate) * up`` of every token: [num_tokens, inner]; see the module."""
    num_tokens, size = inputs.shape
    is_whole = inputs.is_contiguous() and weight.is_contiguous() and is_served(inputs, weight)
    if weight.shape[1] != size or weight.shape[0] % 2 or not is_whole:
        message = (
            f"inputs {tuple(inputs.shape)} and gate/up rows {tuple(weight.shape)} must be "
            "contiguous, of one depth, with rows that are multiples of 16 bytes, on SM 90 or later"
        )
        raise ValueError(message)
    if scales is not None and scales.shape != (num_tokens,):
        message = f"{tuple(scales.shape)} scales are not one of each of {num_tokens} tokens"
        raise ValueError(message)
    out = torch.empty(num_tokens, weight.shape[0] // 2, dtype=inputs.dtype, device=inputs.device)
    if num_tokens == 0:
        return out
    num_columns = weight.shape[0]
    tile = tile or choose_tile(num_tokens, num_columns, inputs.dtype)
    tiles = triton.cdiv(num_tokens, tile.rows) * triton.cdiv(num_columns, tile.columns)
    num_programs = num_multiprocessors()
    _swiglu_gemm[(min(num_programs, tiles),)](
        TensorDescriptor.from_tensor(inputs, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.depth]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.columns // 2]),
        scales,
        bias,
        num_tokens,
        num_columns,
        size,
        BM=tile.rows,
        BN=tile.columns,
        BK=tile.depth,
        GROUP=tile.group,
        STAGES=tile.num_stages,
        PROGRAMS=num_programs,
        HAS_SCALES=scales is not None,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if inputs.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
    )
    return out
