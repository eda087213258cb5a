"""What a byte read and an operation cost in joules here, and what the workloads cost at least.

Each piece of work is repeated for some seconds, so that the GPU comes to its power limit if it does
at all. Costs are beyond the watts of a GPU whose clocks are up and that does next to nothing.

Predictions (H200, 700 W): idle at full clocks 130 W; reading alone 650 W at 4.57 TB/s, 114 J/TB;
products of operands that stay in shared memory 690 W at 700 TFLOP/s, 0.8 J/TFLOP; attention reads
at 5 to 10 % more a byte. At least 12.1 s for workload A (11,060 tok/s; 12.4 measured), 1.50 s for D
(43,700 tok/s; 43,567 and 44,412), 9.5 ms for a step of B at 128 (9.3 to 9.4), 3.5 s for C: only C
is not bound by power.
"""

import time
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from tests.benchmark_models import LLAMA8B, QWEN06B
from tests.gpu.measure import decode_attention as attention
from tests.gpu.measure.harness import Readings, capture
from tests.gpu.workload_energy import Costs, Work, decode_work, offline_work, prefill_work

from mizzen_worker.bench.device_use import DeviceMeter, NvmlCounters, open_counters
from mizzen_worker.bench.workloads import mixed_requests
from mizzen_worker.kernels.gpu.skinny_gemm import gated, multiply
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct, choose

SECONDS = 5.0
SETTLING_S = 2.0
TOLERANCE = 0.02
"""Above the power limit, on average over ``SECONDS``: the driver holds to it only so closely."""
READ_BYTES = 4 << 30
ROUNDS = 256
"""Products of one pair of operands in a launch."""
ROWS, COLUMNS, DEPTH = 128, 256, 64
SIDE = 8192


@triton.jit
def _read(values, sums, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.int32)
    for block in tl.range(BLOCKS, num_stages=4):
        place = (program * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(values + place)
    tl.store(sums + program, tl.sum(total, axis=0))


@triton.jit
def _multiply(left, right, sums, TIMES, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    program = tl.program_id(0)
    rows = tl.load(left + program * M * K + row[:, None] * K + depth[None, :])
    columns = tl.load(right + program * N * K + depth[:, None] + column[None, :] * K)
    total = tl.zeros([M, N], tl.float32)
    for _ in tl.range(TIMES, num_stages=1):
        total = tl.dot(rows, columns, total)
    tl.store(sums + program * N + column, tl.sum(total, axis=0))


class Meter:
    """Repeats work and reads what it drew."""

    def __init__(self, readings: Readings, counters: NvmlCounters) -> None:
        self._readings = readings
        self._limit_w = counters.limit_w()
        self._meter = DeviceMeter(ExpertTally(), counters)

    def watts(self, name: str, work: Callable[[], object], **units: float) -> tuple[float, float]:
        """Watts and seconds of one ``work``; ``units`` of it are told a second."""
        graph = capture(work)
        self._repeat(graph, SETTLING_S)
        self._meter.begin()
        count = self._repeat(graph, SECONDS)
        use = self._meter.end()
        each_s = use.elapsed_s / count
        self._readings.add(
            name,
            each_s * 1e6,
            W=round(use.watts, 1),
            **{"power-capped": round(use.capped_share, 3)},
            **{f"{unit}/s": round(amount / each_s, 3) for unit, amount in units.items()},
        )
        most_w = self._limit_w * (1 + TOLERANCE)
        assert use.watts < most_w, f"{name}: {use.watts} W are above the limit; repeat for longer"
        return use.watts, each_s

    def _repeat(self, graph: torch.cuda.CUDAGraph, seconds: float) -> int:
        """How often in so many seconds."""
        torch.cuda.synchronize()
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            for _ in range(4):
                graph.replay()
            torch.cuda.synchronize()
            count += 4
        return count


def _reading(values: torch.Tensor) -> Callable[[], object]:
    block, blocks = 4096, 64
    programs = READ_BYTES // 4 // (block * blocks)
    sums = torch.empty(programs, dtype=torch.int32, device="cuda")

    def work() -> None:
        _read[(programs,)](values, sums, BLOCK=block, BLOCKS=blocks, num_warps=8)

    work()
    for some, found in zip(values.view(programs, -1).split(64), sums.split(64), strict=True):
        expected = some.sum(1, dtype=torch.int64)
        assert torch.equal(found.long() & 0xFFFFFFFF, expected & 0xFFFFFFFF), "not all was read"
    return work


def _multiplying(programs: int) -> Callable[[], object]:
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    left = torch.randn(programs, ROWS, DEPTH, **kind)
    right = torch.randn(programs, COLUMNS, DEPTH, **kind)
    sums = torch.empty(programs, COLUMNS, dtype=torch.float32, device="cuda")

    def work(times: int = ROUNDS) -> None:
        _multiply[(programs,)](left, right, sums, times, ROWS, COLUMNS, DEPTH, num_warps=8)

    work(3)
    expected = 3 * left[0].float().sum(0) @ right[0].float().t()
    torch.testing.assert_close(sums[0], expected, rtol=2e-2, atol=2.0)
    return work


def _layer_products(rows: int, *, by_library: bool) -> tuple[Callable[[], object], float, float]:
    """The four products of llama8b's layers on ``rows``; terabytes of matrices, teraoperations."""
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    sizes = (
        (SkinnyProduct.QKV, 6144, 4096),
        (SkinnyProduct.ADD, 4096, 4096),
        (SkinnyProduct.GATE_UP, 28672, 4096),
        (SkinnyProduct.ADD, 4096, 14336),
    )
    layers = [
        [torch.randn(outputs, inputs, **kind) * inputs**-0.5 for _, outputs, inputs in sizes]
        for _ in range(6)
    ]
    batches = [torch.randn(rows, inputs, **kind) for _, _, inputs in sizes]

    def work() -> None:
        for matrices in layers:
            for (product, outputs, inputs), matrix, batch in zip(
                sizes, matrices, batches, strict=True
            ):
                tile = choose(Matrix(product=product, outputs=outputs, inputs=inputs), rows)
                if by_library or tile is None:
                    torch.mm(batch, matrix.t())
                elif product is SkinnyProduct.GATE_UP:
                    gated(batch, matrix, tile, launch=attention.DEPENDENT)
                else:
                    dtype = torch.float32 if tile.splits > 1 else torch.bfloat16
                    multiply(batch, matrix, tile, dtype=dtype, launch=attention.DEPENDENT)

    elements = sum(matrix.numel() for matrices in layers for matrix in matrices)
    return work, 2e-12 * elements, 2e-12 * elements * rows


def _measure_products(
    readings: Readings, meter: Meter, idle_w: float, rows: int, *, by_library: bool
) -> None:
    work, terabytes, operations = _layer_products(rows, by_library=by_library)
    name = f"products of llama8b, {rows} rows, {'library' if by_library else 'ours'}"
    watts, each_s = meter.watts(name, work, TB=terabytes, TFLOP=operations)
    joules = round((watts - idle_w) * each_s / operations, 3)
    readings.add(f"{name}: joules a TFLOP, reading included", joules=joules)


def _attending(rows: int) -> tuple[float, Callable[[], object]]:
    """Terabytes, and the attention of llama8b over some layers."""
    case = attention.Case(attention.LLAMA, rows, 1150)
    layers = attention.Pools("cuda", attention.POOL_PAGES).chain(case)
    tiles = attention.shipped(case)

    def work() -> None:
        for layer in layers:
            attention.run(layer, tiles, attention.DEPENDENT, attention.RULE)

    return case.num_bytes * len(layers) * 1e-12, work


def workloads() -> Iterator[tuple[str, Work, float]]:
    """Name, work, and how many of its unit it makes."""
    requests = mixed_requests(256)
    num_new = float(sum(request.num_new for request in requests))
    yield "A llama8b, tok/s", offline_work(LLAMA8B, requests), num_new
    yield "C qwen06b, tok/s", offline_work(QWEN06B, requests), num_new
    yield "D llama8b, input tok/s", prefill_work(LLAMA8B, [4096] * 16), 16 * 4096.0
    for batch in (1, 32, 128):
        # From the first token on, as the bench counts: 255 steps.
        work = decode_work(LLAMA8B, [(1024, 256)] * batch)
        yield f"B llama8b, batch {batch}, steps/s", work, 255.0


def measure(readings: Readings) -> None:
    torch.manual_seed(0)
    counters = open_counters(torch.device("cuda"))
    meter = Meter(readings, counters)
    idle_w, _ = meter.watts("waiting", lambda: torch.cuda._sleep(2_000_000))
    terabytes = READ_BYTES * 1e-12
    # What bits change from word to word is part of the cost: numbers as weights and keys are.
    numbers = torch.randn(READ_BYTES // 2, device="cuda", dtype=torch.bfloat16).view(torch.int32)
    read_w, read_s = meter.watts("reading numbers", _reading(numbers), TB=terabytes)
    meter.watts("reading random bits", _reading(numbers.random_()), TB=terabytes)
    del numbers
    programs = 132
    operations = 2e-12 * programs * ROUNDS * ROWS * COLUMNS * DEPTH
    held_w, held_s = meter.watts(
        "products of operands that stay", _multiplying(programs), TFLOP=operations
    )
    square = [torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    cube = 2e-12 * SIDE**3
    large_w, large_s = meter.watts("a product of 8192 cubed", lambda: torch.mm(*square), TFLOP=cube)
    size, attend_work = _attending(256)
    attend_w, attend_s = meter.watts("attention of llama8b, 256 x 1150", attend_work, TB=size)
    del attend_work
    for rows in (128, 192, 256):
        for by_library in (False, True):
            _measure_products(readings, meter, idle_w, rows, by_library=by_library)
    costs = Costs(
        joules_per_terabyte=(read_w - idle_w) * read_s / terabytes,
        joules_per_teraoperation=min(
            (held_w - idle_w) * held_s / operations, (large_w - idle_w) * large_s / cube
        ),
        idle_w=idle_w,
        limit_w=counters.limit_w(),
    )
    readings.add(
        "costs beyond waiting",
        joules_per_terabyte=round(costs.joules_per_terabyte, 1),
        joules_per_teraoperation=round(costs.joules_per_teraoperation, 3),
        attention_joules_per_terabyte=round((attend_w - idle_w) * attend_s / size, 1),
    )
    for name, work, count in workloads():
        least_s = costs.least_seconds(work)
        readings.add(
            f"bound by power: {name}",
            seconds=round(least_s, 4),
            most=round(count / least_s, 1),
            terabytes=round(work.terabytes, 3),
            teraoperations=round(work.teraoperations, 1),
        )
