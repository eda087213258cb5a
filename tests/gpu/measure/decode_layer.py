"""Decode attention and products inside whole layers: what is best alone need not be best there.

Rows of one length, and of 400 to 1,900 positions, the longest first (as rows are planned). Told are
the shipped tile, then the best of the others, in microseconds a layer.

Predictions (H200, bfloat16): a rule for splits that counts on rows of one length loses 5 to 15 us
of a layer at 40 to 96 rows of different lengths; products whose tile is best alone are within 1 us
of the best inside the layer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from tests.benchmark_models import expert_sizes, facts_of
from tests.gpu.measure.harness import Readings, capture, precompile, relative_error, time_graph

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import DecodeTile, decode_attention
from mizzen_worker.kernels.gpu.launching import dependent
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.layers.gpu import skinny_operations
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations, SkinnyValue
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct, choose
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, Routing

PAGE = 16
HEAD_DIM = 128
LAYERS = 4
MOST_ROWS = 256
MAX_PAGES = 128
RULE = ScoreRule(scale=HEAD_DIM**-0.5)
BFLOAT16 = torch.bfloat16
LIMIT_S = 90.0
_TIMED_US = 6000.0

TILES = {
    name: DecodeTile(tokens=tokens, num_warps=warps, num_stages=3, is_ahead=is_ahead, splits=1)
    for name, tokens, warps, is_ahead in (
        ("64/2", 64, 2, False),
        ("64/4", 64, 4, False),
        ("64/4 ahead", 64, 4, True),
        ("32/2 ahead", 32, 2, True),
    )
}
SIZES = {
    "llama8b": (8, 16, 24, 32, 40, 48, 64, 80, 96, 128),
    "qwen06b": (32, 64, 96, 160),
    "qwen30b-a3b": (32, 64, 96, 128),
}
QKV_O_TILES = {
    16: [(16, 64, 256, 3), (16, 64, 128, 6)],
    32: [(32, 64, 256, 4), (32, 64, 128, 6), (32, 64, 128, 4)],
    64: [(64, 64, 128, 4), (32, 64, 128, 4), (64, 64, 64, 6)],
    96: [(64, 64, 128, 4), (128, 64, 64, 6), (32, 64, 128, 4)],
    128: [(64, 64, 128, 4), (128, 64, 64, 6), (64, 64, 64, 6)],
}
"""Rows, columns, depth, stages of a tile, by rows of the step."""


def weight(*shape: int, device: str) -> GpuWeight:
    values = torch.empty(shape, dtype=BFLOAT16, device=device)
    return GpuWeight(values=values if device == "meta" else values.normal_(0, shape[-1] ** -0.5))


@dataclass(frozen=True)
class Layer:
    qkv: GpuWeight
    out: GpuWeight
    keys: torch.Tensor
    values: torch.Tensor
    dense: tuple[GpuWeight, GpuWeight] | None
    experts: Experts[GpuWeight] | None


class Model:
    """Some layers of a model's shape, and pages for its rows."""

    def __init__(self, name: str, device: str) -> None:
        self.shape = facts_of(name).shape
        self.device = device
        self.num_pages = MOST_ROWS * MAX_PAGES + 1 if device != "meta" else 4
        self.layers = [self._layer() for _ in range(LAYERS)]
        self.table = torch.randn(MAX_PAGES * PAGE, 2, HEAD_DIM // 2, device=device)
        order = torch.randperm(MOST_ROWS * MAX_PAGES, dtype=torch.int32) + 1
        self.page_table = torch.zeros(MOST_ROWS + 1, MAX_PAGES, dtype=torch.int32)
        self.page_table[1:] = order.view(MOST_ROWS, MAX_PAGES)

    def _layer(self) -> Layer:
        shape, device = self.shape, self.device
        size = (self.num_pages * PAGE, shape.num_kv_heads, HEAD_DIM)
        keys, values = (torch.empty(size, dtype=BFLOAT16, device=device) for _ in range(2))
        if device != "meta":
            keys.normal_()
            values.normal_()
        hidden, inner = shape.hidden_size, shape.intermediate_size
        dense = experts = None
        if shape.experts is None:
            dense = weight(2 * inner, hidden, device=device), weight(hidden, inner, device=device)
        else:
            count, chosen, _, expert_inner = expert_sizes(shape)
            experts = Experts(
                routing=Routing(num_chosen=chosen, is_normalised=True),
                router=weight(count, hidden, device=device),
                gate_up=weight(count, 2 * expert_inner, hidden, device=device),
                down=weight(count, hidden, expert_inner, device=device),
            )
        columns = (shape.num_heads + 2 * shape.num_kv_heads) * HEAD_DIM
        return Layer(
            qkv=weight(columns, hidden, device=device),
            out=weight(hidden, shape.num_heads * HEAD_DIM, device=device),
            keys=keys,
            values=values,
            dense=dense,
            experts=experts,
        )


class Step:
    """One step of rows with these lengths, from hidden rows to hidden rows."""

    def __init__(self, model: Model, lengths: torch.Tensor) -> None:
        device, num_rows = model.device, len(lengths)
        self._model, self._lengths = model, lengths
        last = lengths - 1
        slots = torch.arange(1, num_rows + 1)
        pages = model.page_table[slots, last // PAGE].long()
        self._rows = PagedRows(
            page_table=model.page_table.to(device),
            row_slots=slots.to(device),
            row_lengths=lengths.to(torch.int32).to(device),
            page_size=PAGE,
        )
        self._hidden = torch.empty(num_rows, model.shape.hidden_size, dtype=BFLOAT16, device=device)
        if device != "meta":
            self._hidden.normal_()
        self._step = SimpleNamespace(
            settings=SimpleNamespace(eps=1e-6, table=model.table, expert_counts=None),
            is_dependent=True,
            batch=SimpleNamespace(
                positions=last.to(device),
                kv_locations=(pages * PAGE + last % PAGE).to(device),
                is_all_sampled=True,
                page_size=PAGE,
            ),
            pool=SimpleNamespace(
                keys=lambda layer: model.layers[layer].keys,
                values=lambda layer: model.layers[layer].values,
                scale=lambda _: SimpleNamespace(key=1.0, value=1.0),
            ),
            attend=self._attend,
        )
        self.tile = self.shipped()

    def shipped(self) -> DecodeTile:
        shape = self._model.shape
        return decode_tile(
            DecodeWork(
                num_rows=len(self._lengths),
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                row_bytes=2 * HEAD_DIM,
                max_length=int(self._lengths.max()),
            )
        )

    def _attend(self, layer: int, queries: torch.Tensor, _: int | None) -> torch.Tensor:
        stored = self._model.layers[layer]
        return decode_attention(
            queries,
            stored.keys,
            stored.values,
            self._rows,
            RULE,
            tile=self.tile,
            launch=dependent(),
        )

    def run(self) -> torch.Tensor:
        operations = SkinnyOperations(self._step)  # type: ignore[arg-type]
        value = SkinnyValue(rows=self._hidden.clone(), normed=self._hidden)
        for index, layer in enumerate(self._model.layers):
            queries = operations.norm_qkv_rotary_store(value, layer.qkv, index)
            attended = operations.attend(queries, index, None)
            value = operations.linear_add(attended, layer.out, value)
            if layer.experts is not None:
                value = operations.norm_experts_add(value, layer.experts)
            if layer.dense is not None:
                gate_up, down = layer.dense
                inner = operations.norm_gate_up_silu(value, gate_up)
                value = operations.linear_add(inner, down, value)
        return operations._normed(value)


def quick_time(work: Callable[[], object]) -> float:
    """Microseconds of ``work`` as a graph, within some 30 ms."""
    graph = capture(work, warm_up=1)
    once_us = time_graph(graph, replays=1, rounds=1)
    return time_graph(graph, replays=max(2, int(_TIMED_US / once_us)), rounds=3)


def lengths_of(kind: str, num_rows: int) -> torch.Tensor:
    if kind == "equal":
        return torch.full((num_rows,), 1150)
    return torch.linspace(1900, 400, num_rows).long()


def attention_tiles(num_rows: int, kv_heads: int) -> Iterator[tuple[str, DecodeTile]]:
    pairs = num_rows * kv_heads
    for name, tile in TILES.items():
        for splits in (1, 2, 3, 4, 6, 8, 16):
            if 120 <= pairs * splits <= 1300:
                yield f"{name} in {splits}", replace(tile, splits=splits)


def products_of(model: Model) -> dict[str, Matrix]:
    shape = model.shape
    heads = shape.num_heads + 2 * shape.num_kv_heads
    return {
        "QKV": Matrix(
            product=SkinnyProduct.QKV, outputs=heads * HEAD_DIM, inputs=shape.hidden_size
        ),
        "O": Matrix(
            product=SkinnyProduct.ADD,
            outputs=shape.hidden_size,
            inputs=shape.num_heads * HEAD_DIM,
        ),
    }


def product_tiles(matrix: Matrix, num_rows: int) -> list[Tile | None]:
    found = [choose(matrix, num_rows)]
    for rows, columns, depth, stages in QKV_O_TILES.get(num_rows, []):
        for splits in (1, 2, 4):
            programs = matrix.outputs // columns * -(-num_rows // rows) * splits
            if 80 <= programs <= 300:
                tile = Tile(rows=rows, columns=columns, depth=depth, stages=stages, splits=splits)
                found += [tile, replace(tile, ahead=1024)]
    return list(dict.fromkeys([*found, None]))


class OtherTile:
    """A context in which one product has another tile."""

    def __init__(self, wanted: Matrix, tile: Tile | None) -> None:
        self._wanted, self._tile = wanted, tile

    def __enter__(self) -> None:
        def other(matrix: Matrix, rows: int) -> Tile | None:
            return self._tile if matrix == self._wanted else choose(matrix, rows)

        skinny_operations.choose = other

    def __exit__(self, *_: object) -> None:
        skinny_operations.choose = choose


def launch_all() -> None:
    """What is launched below, with tensors that hold nothing."""
    for name, sizes in SIZES.items():
        model = Model(name, "meta")
        for num_rows in sizes:
            step = Step(model, lengths_of("mixed", num_rows))
            step.run()
            for _, step.tile in attention_tiles(num_rows, model.shape.num_kv_heads):
                step.run()
            for matrix in products_of(model).values():
                for tile in product_tiles(matrix, num_rows):
                    with OtherTile(matrix, tile):
                        step.run()


class Session:
    """Checks and times until the time is over."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def is_over(self) -> bool:
        return self._readings.seconds() > LIMIT_S

    def attention(self, name: str, model: Model, num_rows: int, kind: str) -> None:
        step = Step(model, lengths_of(kind, num_rows))
        expected = step.run()
        shipped = step.tile
        # A router that sees other roundings chooses other experts.
        limit = 1e-2 if model.shape.experts is None else 0.2
        found = []
        for told, step.tile in attention_tiles(num_rows, model.shape.num_kv_heads):
            error = relative_error(step.run(), expected)
            assert error < limit, f"{name}, {num_rows} rows, {told}: {error}"
            mark = "shipped " if step.tile == shipped else ""
            found.append((quick_time(step.run) / LAYERS, mark + told))
        self._tell(f"{name} {num_rows} {kind}", found)

    def products(self, name: str, model: Model, num_rows: int) -> None:
        step = Step(model, lengths_of("mixed", num_rows))
        for label, matrix in products_of(model).items():
            shipped, found = choose(matrix, num_rows), []
            for tile in product_tiles(matrix, num_rows):
                with OtherTile(matrix, tile):
                    mark = "shipped " if tile == shipped else ""
                    found.append((quick_time(step.run) / LAYERS, f"{mark}{tile or 'library'}"))
            self._tell(f"{name} {num_rows} {label}", found)

    def _tell(self, label: str, found: list[tuple[float, str]]) -> None:
        found.sort()
        for place, (us, told) in enumerate(found):
            if place < 5 or told.startswith("shipped"):
                self._readings.add(f"{label}: {told}", us)


def measure(readings: Readings) -> None:
    torch.manual_seed(0)
    count = precompile(launch_all)
    readings.add("compiled", count=count, seconds=round(readings.seconds(), 1))
    session = Session(readings)
    for name, sizes in SIZES.items():
        model = Model(name, "cuda")
        for num_rows in sizes:
            for kind in ("mixed", "equal"):
                if not session.is_over():
                    session.attention(name, model, num_rows, kind)
            if num_rows in QKV_O_TILES and not session.is_over():
                session.products(name, model, num_rows)
