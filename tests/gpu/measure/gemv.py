"""Steps of one token: correctness at real shapes, whole captured steps, tiles by descent in them.

Prediction (whole step from embedding to the best of each block of the head, context 1,100):
qwen06b 0.53 ms (0.565 measured of the prototype; attention + merge 0.5 us a layer less through
rotation in the product and old positions only, head 2 us less without its norm, products with
fewer registers), llama8b 3.68 ms (3.72); plain launches 0.75 and 4.9 ms. Context 8,192 of qwen06b:
+0.28 ms (4.7 us a layer of bytes, loops of 5 tiles), 32,768: +1.1 ms.
"""

import itertools
from dataclasses import replace

import torch
from tests.gpu.measure.gemv_models import (
    LLAMA8B,
    QWEN06B,
    Bench,
    Job,
    Subject,
    Tiles,
    launch_all,
    without,
)
from tests.gpu.measure.harness import Readings, capture, precompile, require_close, time_graph

from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.single_row_attention import SplitTile
from mizzen_worker.layers.gpu.step import HeadResult

DEVICE = torch.device("cuda")
LIMIT_TWO_LAYERS = 0.02
LIMIT_WHOLE = 0.08
"""Between two ways of rounding 28 or 32 layers of bfloat16 activations."""


def cut(warps: int, rows: int, ahead: int) -> GemvTile:
    return GemvTile(warps=warps, rows=rows, ahead=ahead)


def split(splits: int, tokens: int, warps: int, stages: int = 2, columns: int = 64) -> SplitTile:
    return SplitTile(
        splits=splits, tokens=tokens, warps=warps, stages=stages, merge_columns=columns
    )


SPLITS = [
    split(32, 64, 8),
    split(32, 64, 8, columns=128),
    split(32, 64, 8, columns=32),
    split(32, 64, 4),
    split(32, 64, 4, 3),
    split(16, 128, 8),
    split(64, 32, 4, columns=32),
    split(64, 32, 2, columns=32),
    split(64, 64, 4, columns=32),
]

FEWER_SPLITS = [split(24, 64, 8), split(24, 64, 8, columns=128), split(20, 64, 8), split(28, 64, 8)]
"""As many as hold 1,100 positions in one tile each leave room for programs of the output's product,
which load its matrix while attention runs. Predicted: -0.3 to -0.6 us a layer of llama8b, -10 to
-19 us a step."""

VARIANTS: dict[str, dict[str, list]] = {
    "qwen06b": {
        "attention": SPLITS,
        "qkv": [cut(4, 2, 4), cut(4, 4, 4), cut(8, 4, 4), cut(8, 4, 2), cut(16, 2, 4)],
        "output": [cut(8, 1, 4), cut(4, 1, 8), cut(4, 2, 4), cut(8, 2, 4), cut(4, 2, 8)],
        "gate_up": [cut(8, 2, 4), cut(4, 4, 4), cut(4, 4, 2), cut(8, 4, 4), cut(16, 2, 4)],
        "down": [cut(8, 1, 6), cut(8, 1, 4), cut(4, 1, 12), cut(4, 2, 6), cut(4, 2, 4)],
        "head": [cut(8, 2, 4), cut(4, 4, 2), cut(4, 2, 4), cut(8, 4, 4), cut(4, 8, 2)],
    },
    "llama8b": {
        "attention": [*FEWER_SPLITS, *SPLITS[1:5]],
        "gate_up": [cut(8, 2, 4), cut(4, 4, 4), cut(4, 2, 4), cut(8, 2, 2), cut(8, 4, 2)],
        "down": [cut(8, 1, 4), cut(8, 1, 8), cut(4, 2, 4), cut(8, 4, 2)],
        "qkv": [cut(8, 2, 8), cut(4, 2, 4), cut(4, 2, 8), cut(8, 2, 2), cut(8, 4, 2)],
        "output": [cut(8, 1, 4), cut(8, 1, 8), cut(4, 2, 4), cut(8, 4, 2)],
        "head": [cut(4, 1, 16), cut(8, 1, 4), cut(8, 2, 4), cut(4, 2, 4), cut(4, 4, 2)],
    },
}


def poison() -> None:
    """Leave NaN in the memory that torch gives out next."""
    for size in (2**9, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**26):
        held = [torch.full((size,), float("nan"), device=DEVICE) for _ in range(8)]
        del held


def logits_of(bench: Bench, tiles: Tiles) -> torch.Tensor:
    poison()
    found = bench.step(HeadResult.LOGITS, tiles)().logits
    assert found is not None
    return found


def check_two_layers(readings: Readings, subject: Subject) -> None:
    """Shipped tiles against float32: short, one tile a split, and several."""
    for context in (1, 2, 31, 1100, 9000):
        bench = Bench(replace(subject.with_layers(2), context=context), DEVICE)
        key_before = bench.pool.keys(1)[bench.batch.kv_locations].clone()
        found = logits_of(bench, {})
        assert not torch.equal(key_before, bench.pool.keys(1)[bench.batch.kv_locations])
        best = bench.step(HeadResult.BEST, {})()
        assert best.best_values is not None
        assert best.best_ids is not None
        assert abs(float(best.best_values.max() / found.max()) - 1) < 1e-3
        chosen = best.best_ids[0, best.best_values[0].argmax()]
        assert int(chosen) == int(found.argmax())
        expected = bench.expected()
        error = require_close(f"{subject.name} {context}", found, expected, LIMIT_TWO_LAYERS)
        is_same = int(found.argmax()) == int(expected.argmax())
        readings.add(f"{subject.name} two layers, context {context}", error=error, argmax=is_same)
        del bench, expected
    torch.cuda.empty_cache()


def time_step(
    bench: Bench, tiles: Tiles, head: HeadResult = HeadResult.BEST, **launch: bool
) -> float:
    return time_graph(capture(bench.step(head, tiles, **launch), warm_up=1), rounds=7)


def check_rerun(readings: Readings, bench: Bench) -> None:
    """A captured dependent step gives the same bits each time, and what plain launches give."""
    step = bench.step(HeadResult.LOGITS, {})
    outputs = []

    def run() -> None:
        outputs.append(step().logits)

    graph = capture(run)
    found = outputs[-1]
    plain = bench.step(HeadResult.LOGITS, {}, is_dependent=False)().logits
    replays: list[torch.Tensor] = []
    for _ in range(10):
        found.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        error = require_close(f"{bench.subject.name} replayed", found, plain, LIMIT_WHOLE)
        replays.append(found.clone())
        assert torch.equal(found, replays[0]), f"{bench.subject.name}: a replay differs"
    readings.add(f"{bench.subject.name} 10 replays bit-equal", error_to_plain=error)


def describe(tile: object) -> str:
    if isinstance(tile, SplitTile):
        return f"{tile.splits}/{tile.tokens}/{tile.warps}/{tile.stages}/{tile.merge_columns}"
    assert isinstance(tile, GemvTile)
    return f"{tile.warps}/{tile.rows}/{tile.ahead}"


def descend(readings: Readings, bench: Bench, end_s: float) -> Tiles:
    """Factor by factor, the best tile with the best of the factors before it."""
    name = bench.subject.name
    expected = logits_of(bench, {})
    best: Tiles = {}
    best_us = time_step(bench, best)
    readings.add(f"{name} step, shipped tiles", best_us)
    for factor, variants in VARIANTS[name].items():
        for tile in variants:
            if readings.seconds() > end_s:
                readings.add(f"{name} out of time at {factor}")
                return best
            tiles = best | {factor: tile}
            found = logits_of(bench, tiles)
            error = require_close(f"{name} {factor} {tile}", found, expected, LIMIT_WHOLE)
            us = time_step(bench, tiles)
            readings.add(f"{name} {factor} {describe(tile)}", us, error=round(error, 4))
            if us < best_us * 0.998:
                best, best_us = tiles, us
    again = time_step(bench, best)
    chosen = {factor: describe(tile) for factor, tile in best.items()}
    readings.add(f"{name} step, best tiles", again, **chosen)
    return best


def run_model(readings: Readings, subject: Subject, end_s: float) -> None:
    check_two_layers(readings, subject)
    bench = Bench(subject, DEVICE)
    check_rerun(readings, bench)
    best = descend(readings, bench, end_s)
    readings.add(f"{subject.name} step with logits", time_step(bench, best, HeadResult.LOGITS))
    readings.add(
        f"{subject.name} step, plain, shipped tiles", time_step(bench, {}, is_dependent=False)
    )
    for part in ("qkv", "attention", "output", "gate_up", "down", "head"):
        with without(subject, part):
            readings.add(f"{subject.name} step without {part}", time_step(bench, best))
    for context in (256, 8192, 32_768):
        bench.batch.positions.fill_(context - 1)
        bench.batch.device_row_lengths.fill_(context)
        readings.add(f"{subject.name} step, context {context}", time_step(bench, best))


def measure(readings: Readings) -> None:
    jobs: list[Job] = [
        (name, {factor: tile}, head, True)
        for name, factors in VARIANTS.items()
        for factor, tiles in factors.items()
        for tile in tiles
        for head in (list(HeadResult) if factor == "head" else [HeadResult.BEST])
    ]
    jobs += [
        (name, {}, head, is_dependent)
        for name, head, is_dependent in itertools.product(VARIANTS, HeadResult, (False, True))
    ]
    count = precompile(lambda: launch_all(jobs))
    readings.add("compiled", count=count, seconds=round(readings.seconds(), 1))
    begun = readings.seconds()
    run_model(readings, LLAMA8B, begun + 35)
    run_model(readings, QWEN06B, begun + 60)
