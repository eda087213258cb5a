"""Instances of the skinny products as the models of the benchmarks launch them, to be compiled."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu import skinny_best, skinny_gemm
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.skinny_launch import batches, tile_options
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.layers.gpu.skinny_tiles import BUCKETS, Matrix, SkinnyProduct, choose

SHIPPED = (
    Matrix(product=SkinnyProduct.QKV, outputs=6144, inputs=4096),
    Matrix(product=SkinnyProduct.ADD, outputs=4096, inputs=4096),
    Matrix(product=SkinnyProduct.GATE_UP, outputs=28672, inputs=4096),
    Matrix(product=SkinnyProduct.ADD, outputs=4096, inputs=14336),
    Matrix(product=SkinnyProduct.BEST, outputs=128256, inputs=4096),
    Matrix(product=SkinnyProduct.LOGITS, outputs=128256, inputs=4096),
    Matrix(product=SkinnyProduct.QKV, outputs=4096, inputs=1024),
    Matrix(product=SkinnyProduct.ADD, outputs=1024, inputs=2048),
    Matrix(product=SkinnyProduct.GATE_UP, outputs=6144, inputs=1024),
    Matrix(product=SkinnyProduct.ADD, outputs=1024, inputs=3072),
    Matrix(product=SkinnyProduct.BEST, outputs=151936, inputs=1024),
    Matrix(product=SkinnyProduct.QKV, outputs=5120, inputs=2048),
    Matrix(product=SkinnyProduct.ADD, outputs=2048, inputs=4096),
    Matrix(product=SkinnyProduct.BEST, outputs=151936, inputs=2048),
)
"""The matrices of llama8b, qwen06b and qwen30b-a3b; LOGITS has one shape: it goes by the rule."""


def instance(
    product: SkinnyProduct, tile: Tile, capability: int
) -> tuple[object, tuple[object, ...], dict[str, object]]:
    """Kernel, arguments and options of a launch as the wrapper makes it."""
    half = torch.empty(1 << 12, dtype=torch.bfloat16)
    weights = torch.empty(1 << 9, 1 << 9, dtype=torch.bfloat16)
    columns = tile.columns // tile.accumulators
    left = TensorDescriptor.from_tensor(weights, [columns, tile.depth])
    inputs = batches(weights, tile)
    sizes = (tile.all_rows, 4096, 4096)
    launch = {"PDL": 1, "launch_pdl": True} if capability >= 90 else PLAIN
    options = tile_options(half, tile, launch) | {"HAS_BIAS": False}
    if product is SkinnyProduct.GATE_UP:
        arguments = (left, left, *inputs, half, half, half, half, *sizes)
        options |= {"ACCUMULATORS": tile.accumulators, "GROUPS": 0}
        kernel = skinny_gemm._gated_kernel
    elif product is SkinnyProduct.BEST:
        best = (torch.empty(16), torch.empty(16, dtype=torch.int32))
        arguments = (left, *inputs, half, half, *best, *sizes)
        kernel = skinny_best._best_kernel
    else:
        is_wide = tile.splits > 1 or product is SkinnyProduct.LOGITS
        out = torch.empty(16, dtype=torch.float32 if is_wide else torch.bfloat16)
        arguments = (left, *inputs, half, half, half, out, *sizes, 2048)
        options |= {"SPLITS": tile.splits, "GROUPS": 0}
        kernel = skinny_gemm._multiply_kernel
    return kernel, arguments, options


def warm_up(product: SkinnyProduct, tile: Tile, capability: int) -> None:
    """Compile an instance into the cache of the compiler."""
    kernel, arguments, options = instance(product, tile, capability)
    kernel.warmup(*arguments, grid=(1,), **options)  # type: ignore[attr-defined]


def shipped_tiles(limit: int) -> set[tuple[SkinnyProduct, Tile]]:
    """Every configuration that the tables give for the models of the benchmarks."""
    found = set()
    for matrix in SHIPPED:
        for bucket in BUCKETS:
            tile = choose(matrix, bucket)
            if tile is not None:
                kind = SkinnyProduct.ADD if matrix.product is SkinnyProduct.QKV else matrix.product
                found.add((kind, tile.fitted(limit)))
    return found
