"""Owns how the products and the attention of a one-token step are cut; launches nothing.

Winners of measurements inside whole steps on an H200 where a shape was measured there (the best
tile of a product alone is often not the best of a step: what counts too is how many threads fit
beside the next kernel's). Other shapes follow a rule made from the same measurements.
"""

import enum
from dataclasses import replace

from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.single_row_attention import SplitTile


class GemvProduct(enum.Enum):
    """What a product is for: its epilogue limits its tile."""

    QKV = "qkv"
    ADD = "add"
    GATE_UP = "gate up"
    HEAD = "head"


_TILE_BY_SHAPE = {
    # qwen06b
    (GemvProduct.QKV, 4096, 1024): GemvTile(warps=16, rows=2, ahead=4),
    (GemvProduct.ADD, 1024, 2048): GemvTile(warps=8, rows=1, ahead=8),
    (GemvProduct.GATE_UP, 6144, 1024): GemvTile(warps=8, rows=2, ahead=4),
    (GemvProduct.ADD, 1024, 3072): GemvTile(warps=8, rows=1, ahead=12),
    (GemvProduct.HEAD, 151_936, 1024): GemvTile(warps=4, rows=4, ahead=4),
    # llama8b
    (GemvProduct.QKV, 6144, 4096): GemvTile(warps=8, rows=2, ahead=2),
    (GemvProduct.ADD, 4096, 4096): GemvTile(warps=8, rows=1, ahead=4),
    (GemvProduct.GATE_UP, 28_672, 4096): GemvTile(warps=8, rows=2, ahead=4),
    (GemvProduct.ADD, 4096, 14_336): GemvTile(warps=8, rows=2, ahead=4),
    (GemvProduct.HEAD, 128_256, 4096): GemvTile(warps=8, rows=1, ahead=16),
    # qwen30b-a3b, attention and head
    (GemvProduct.QKV, 5120, 2048): GemvTile(warps=4, rows=2, ahead=4),
    (GemvProduct.ADD, 2048, 4096): GemvTile(warps=8, rows=1, ahead=8),
    (GemvProduct.HEAD, 151_936, 2048): GemvTile(warps=4, rows=4, ahead=4),
}
"""By use, rows of the weight and inputs."""

_MOST_AHEAD = 16
"""Chunks: more of them take more registers than they hide latency."""


def gemv_tile(product: GemvProduct, num_rows: int, num_inputs: int) -> GemvTile:
    """How to cut a weight of [rows, inputs]."""
    known = _TILE_BY_SHAPE.get((product, num_rows, num_inputs))
    if known is not None:
        return known
    if product in (GemvProduct.QKV, GemvProduct.GATE_UP):
        return GemvTile(warps=8, rows=2, ahead=4)
    if product is GemvProduct.HEAD:
        return GemvTile(warps=4, rows=4, ahead=4)
    # Few rows: a row a warp, so that every multiprocessor has some.
    return (
        GemvTile(warps=8, rows=1, ahead=8)
        if num_rows < 4096
        else GemvTile(warps=8, rows=2, ahead=4)
    )


def qkv_tile(num_rows: int, num_inputs: int, head_dim: int) -> GemvTile:
    """As ``gemv_tile``, with as few warps as a small head wants."""
    tile = gemv_tile(GemvProduct.QKV, num_rows, num_inputs)
    if head_dim % (tile.warps * tile.rows) == 0:
        return tile
    return GemvTile(warps=min(4, head_dim // 2), rows=2, ahead=tile.ahead)


def fp8_gemv_tile(product: GemvProduct, num_rows: int, num_inputs: int) -> GemvTile:
    """For FP8 weights: a chunk has half the bytes, so twice as many are ahead.

    Not where a warp has several rows: unrolled chunks of the input take too many registers.
    """
    tile = gemv_tile(product, num_rows, num_inputs)
    return replace(tile, ahead=min(2 * tile.ahead, _MOST_AHEAD)) if tile.rows == 1 else tile


def split_tile(num_kv_heads: int, head_dim: int, num_multiprocessors: int) -> SplitTile:
    """Two programs a multiprocessor; more splits than 64 would cost the merge too much."""
    wanted = 2 * num_multiprocessors // num_kv_heads
    splits = 1 << max(2, min(6, wanted.bit_length() - 1))
    return SplitTile(
        splits=splits,
        tokens=64 if head_dim <= 128 else 32,
        warps=8,
        merge_columns=64 if splits <= 32 else 32,
    )
