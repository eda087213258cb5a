"""Steps of 2 to 256 tokens without attention: every shipped product checked, then timed.

Prediction, us a stage (product and its small kernel, dependent launches): qwen06b at 2 / 32 / 128
/ 256 rows: QKV 6.5 / 7.1 / 8.5 / 9.5, O 4.5 / 4.7 / 5.6 / 6.7, gate and up 5.3 / 5.6 / 7.3 / 8.8,
down 5.5 / 5.7 / 6.4 / 7.6, head 76 / 83 / 110 / 175. llama8b at 8 / 32 / 128 / 256: QKV 16 / 16.5
/ 17.5 / 22, O 11.7 / 12 / 15 / 21, gate and up 56 / 58 / 66 / 95, down 31 / 31.5 / 39 / 53, head
237 / 243 / 267 / 420. Split QKV, gate and up alternating in one accumulator (96 programs instead
of 48 for qwen06b) and lines asked for before the wait should each gain 0.3 to 1 us where a matrix
is small, and nothing for gate and up of llama8b.

Tiles of 128 + 64 rows at 192 rows (llama8b), where the library takes 26.8 / 20.9 / 82.2 / 47.8: QKV
22, O 15, gate and up 70, down 39. Wide tiles in four splits for down at 128 / 256 rows: 34 / 42
instead of 37.6 / 54.7.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing

import torch
from tests.gpu.measure.harness import Readings, capture, time_graph
from tests.gpu.measure.skinny_bench import LLAMA, QWEN, Bench, Stage, matrices
from tests.worker.kernels.gpu import ahead_of_time
from tests.worker.kernels.gpu.skinny_instances import warm_up

from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct, bucket_of, choose
from mizzen_worker.layers.gpu.step import GpuStep

SHARED = 232_448
SWEEP_SECONDS = 75.0

ORDER = [
    (LLAMA, 192), (LLAMA, 256), (LLAMA, 128), (LLAMA, 160), (QWEN, 192), (QWEN, 256), (QWEN, 128),
    (LLAMA, 144), (QWEN, 144), (LLAMA, 224),
]  # fmt: skip
WHOLES = {QWEN: (2, 32, 64, 128, 192, 256), LLAMA: (2, 32, 64, 128, 144, 192, 256)}

SHAPES = {
    16: [(16, 0, 64, 256, 3, 4), (16, 0, 64, 128, 6, 4), (16, 0, 128, 128, 4, 4)],
    32: [(32, 0, 64, 256, 3, 4), (32, 0, 64, 128, 6, 4), (32, 0, 128, 128, 4, 4)],
    64: [(32, 0, 64, 128, 4, 4), (64, 0, 64, 128, 4, 4), (64, 0, 128, 128, 4, 4)],
    128: [(64, 0, 64, 128, 4, 4), (128, 0, 64, 64, 6, 4), (128, 0, 64, 64, 4, 4),
          (128, 0, 128, 64, 3, 4), (128, 0, 128, 64, 6, 8), (128, 0, 256, 64, 4, 8)],
    160: [(128, 32, 64, 64, 3, 4), (128, 32, 64, 64, 6, 4), (128, 32, 128, 64, 5, 8),
          (128, 32, 256, 64, 4, 8), (64, 16, 64, 64, 6, 4)],
    192: [(128, 64, 64, 64, 3, 4), (128, 64, 64, 64, 6, 4), (128, 64, 128, 64, 5, 8),
          (128, 64, 128, 64, 5, 4), (128, 64, 256, 64, 4, 8), (64, 32, 64, 64, 6, 4),
          (64, 32, 128, 64, 5, 4)],
    240: [(128, 128, 128, 64, 4, 8), (256, 0, 128, 64, 4, 8), (128, 0, 128, 64, 3, 4)],
    256: [(128, 0, 64, 64, 6, 4), (128, 0, 128, 64, 3, 4), (128, 0, 128, 64, 6, 8),
          (128, 0, 256, 64, 4, 8), (256, 0, 64, 64, 5, 8), (256, 0, 128, 64, 4, 8),
          (128, 128, 128, 64, 4, 8)],
}  # fmt: skip
"""Rows, more of them, columns, depth, stages, warps worth trying, by bucket."""


def splits_of(matrix: Matrix, tile: Tile, rows: int) -> list[int]:
    """Splits that give about one or two programs for every multiprocessor."""
    programs = -(-matrix.outputs // tile.columns) * -(-rows // tile.all_rows)
    splits = [
        count
        for count in (1, 2, 3, 4, 6, 8)
        if 80 <= programs * count <= 270 and matrix.inputs // count >= 2 * tile.depth
    ]
    return splits or [1]


def candidates(matrix: Matrix, rows: int) -> list[Tile]:
    """The shipped tile first, then others; ``ahead`` where there is something to hide."""
    bucket = bucket_of(rows)
    assert bucket is not None
    shipped = choose(matrix, rows)
    found = [] if shipped is None else [shipped]
    for tile_rows, more, columns, depth, stages, warps in SHAPES[bucket]:
        tile = Tile(
            rows=tile_rows, more=more, columns=columns, depth=depth, stages=stages, warps=warps
        )
        match matrix.product:
            case SkinnyProduct.GATE_UP:
                variants = [tile]
                if columns >= 128 and not more:
                    variants.append(dataclasses.replace(tile, accumulators=2))
            case SkinnyProduct.BEST:
                variants = [tile] if columns >= 128 else []
            case _:
                variants = [
                    dataclasses.replace(tile, splits=splits)
                    for splits in splits_of(matrix, tile, rows)
                ]
        found += variants
        if rows <= 64 and matrix.product is not SkinnyProduct.BEST:
            found += [dataclasses.replace(variant, ahead=1024) for variant in variants]
    fitting = [tile for tile in found if tile.fitted(SHARED) == tile]
    return list(dict.fromkeys(fitting))


def compiled(work: list[tuple[SkinnyProduct, Tile]]) -> int:
    """Fill the compiler's cache, in a process that has claimed the device's capability."""
    ahead_of_time.claim(90)
    for product, tile in work:
        warm_up(product, tile, 90)
    return len(work)


def compile_side_by_side() -> int:
    """Compile every candidate in several processes; the number of kernels."""
    kinds = {SkinnyProduct.QKV: SkinnyProduct.ADD}
    wanted = {
        (kinds.get(matrix.product, matrix.product), tile)
        for sizes, rows in ORDER
        for matrix in matrices(sizes).values()
        for tile in candidates(matrix, rows)
    }
    work = sorted(wanted, key=str)
    context = multiprocessing.get_context("spawn")
    workers = 14
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        return sum(pool.map(compiled, [work[start::workers] for start in range(workers)]))


def told(tile: Tile | None) -> str:
    if tile is None:
        return "library"
    rows = f"{tile.rows}+{tile.more}" if tile.more else tile.rows
    words = [rows, tile.columns, tile.depth, tile.stages, tile.warps]
    extra = {"split": tile.splits, "accumulators": tile.accumulators, "ahead": tile.ahead}
    plain = {"split": 1, "accumulators": 1, "ahead": 0}
    rest = [f"{name} {value}" for name, value in extra.items() if value != plain[name]]
    return " ".join(["/".join(map(str, words)), *rest])


def sweep(readings: Readings, bench: Bench, rows: int) -> None:
    """Every candidate of every stage, best first; the shipped one and the library's are shown."""
    for name, matrix in matrices(bench.sizes).items():
        stage = Stage(bench, name, rows)
        shipped = choose(matrix, rows)
        times: list[tuple[float, Tile | None]] = []
        for tile in [None, *candidates(matrix, rows)]:
            try:
                stage.check(tile)
                times.append((stage.time(tile), tile))
            except (AssertionError, RuntimeError, ValueError) as error:
                if tile in (None, shipped):
                    raise
                readings.add(f"{bench.sizes.name} {name} {rows} {told(tile)}: {error}"[:300])
        times.sort(key=lambda item: item[0])
        size = matrix.outputs * matrix.inputs * 2
        for place, (us, tile) in enumerate(times):
            is_told = place < 3 or tile is None or tile == shipped
            label = f"{bench.sizes.name} {name} {rows} rows: {told(tile)}"
            if is_told:
                readings.add(label, us, num_bytes=size, is_shipped=tile == shipped, place=place)


def _whole_of(bench: Bench, step: GpuStep) -> object:
    return bench.whole(SkinnyOperations(step))


def wholes(readings: Readings, bench: Bench, all_rows: tuple[int, ...]) -> None:
    """Steps without attention, with the shipped choices, dependent and not."""
    sizes = bench.sizes
    for rows in all_rows:
        for is_dependent in (True, False):
            step = bench.step(rows, is_dependent=is_dependent)
            # A fresh object of operations each time: its values are of one step.
            work = functools.partial(_whole_of, bench, step)
            us = time_graph(capture(work), replays=4, rounds=5)
            head = Stage(bench, "head", rows)
            head_us = head.time(choose(matrices(sizes)["head"], rows))
            layer = (us - head_us) / sizes.layers
            readings.add(
                f"{sizes.name} {rows} rows: step without attention, dependent {is_dependent}",
                head_us + layer * sizes.all_layers,
                layer_us=round(layer, 2),
                head_us=round(head_us, 1),
            )


def measure(readings: Readings) -> None:
    torch.manual_seed(0)
    readings.add("kernels compiled", count=compile_side_by_side(), s=round(readings.seconds(), 1))
    benches = {sizes.name: Bench(sizes) for sizes in (QWEN, LLAMA)}
    for sizes in (QWEN, LLAMA):
        for name, matrix in matrices(sizes).items():
            for rows in (2, 21, 32, 64, 128, 144, 160, 192, 233, 256):
                Stage(benches[sizes.name], name, rows).check(choose(matrix, rows))
    readings.add("shipped products are right", s=round(readings.seconds(), 1))
    for sizes in (QWEN, LLAMA):
        wholes(readings, benches[sizes.name], WHOLES[sizes])
    for sizes, rows in ORDER:
        if readings.seconds() > SWEEP_SECONDS:
            readings.add(f"not swept for lack of time: {sizes.name} {rows}")
            continue
        sweep(readings, benches[sizes.name], rows)
