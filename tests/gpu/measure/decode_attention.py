"""Decode attention at real shapes: rows of their own, and rows that share their first pages.

Predictions (H200, bfloat16, head size 128, page 16; one layer, merge included, dependent launches):
heads 32/8 at 1,150 positions: 128 rows 148 us (4.1 TB/s), 32 rows 40 us, 8 rows 14 us, 1 row 7 us;
heads 16/8 at 700: 256 rows 171 us, 128 rows 89 us, 32 rows 26 us, 8 rows 11 us, 2 rows 6 us;
heads 32/4 (half the bytes): 128 rows 76 us. Two phases over 2,048 shared positions: 256 rows in 8
groups 78 us (plain 290), 32 rows in one 16 us (plain 45). Break-even: 4 rows of 256 positions.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.benchmark_models import facts_of
from tests.gpu.measure.harness import Readings, precompile, relative_error, require_close, time_work
from tests.worker.kernels.gpu.ahead_of_time import empty

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile, shared_tile
from mizzen_worker.contracts.batch import PrefixGroup
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import (
    DecodeTile,
    SharedPart,
    decode_attention,
    num_parts,
)
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, shared_prefix_attention
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS
from mizzen_worker.model_executor.shared_prefix_items import num_shared_items, shared_work_items

PAGE_SIZE = 16
HEAD_DIM = 128
MAX_PAGES = 288
COPIES = 3
POOL_PAGES = 19_000
SHARED = 2048
LIMIT_S = 80
DEPENDENT = {"PDL": 1, "launch_pdl": True}
BFLOAT16 = torch.bfloat16
RULE = ScoreRule(scale=HEAD_DIM**-0.5)


@dataclass(frozen=True)
class Heads:
    name: str
    num_heads: int
    num_kv_heads: int


def _heads_of(name: str) -> Heads:
    shape = facts_of(name).shape
    return Heads(name, shape.num_heads, shape.num_kv_heads)


LLAMA, QWEN, QWEN_MOE = map(_heads_of, ("llama8b", "qwen06b", "qwen30b-a3b"))


@dataclass(frozen=True)
class Case:
    """Rows of ``length`` positions; the first ``shared`` of them common to groups of rows."""

    heads: Heads
    num_rows: int
    length: int
    group_rows: int = 0
    shared: int = 0

    @property
    def work(self) -> DecodeWork:
        return DecodeWork(
            num_rows=self.num_rows,
            num_heads=self.heads.num_heads,
            num_kv_heads=self.heads.num_kv_heads,
            row_bytes=2 * HEAD_DIM,
            max_length=40_960,
        )

    @property
    def groups(self) -> tuple[PrefixGroup, ...]:
        return tuple(
            PrefixGroup(first=first, count=self.group_rows, num_tokens=self.shared)
            for first in range(0, self.num_rows, self.group_rows or self.num_rows)
            if self.group_rows
        )

    @property
    def num_bytes(self) -> int:
        """Of keys and values, shared ones once."""
        own = self.num_rows * (self.length - self.shared)
        tokens = own + len(self.groups) * self.shared
        return tokens * self.heads.num_kv_heads * HEAD_DIM * 4


@dataclass(frozen=True)
class Tiles:
    own: DecodeTile
    shared: SharedTile | None = None

    def __str__(self) -> str:
        own = self.own
        text = f"own {own.tokens}/{own.num_warps}/{own.num_stages}"
        text += f"{' ahead' if own.is_ahead else ''} S{own.splits}"
        if self.shared is not None:
            first = self.shared
            text += f", shared {first.tokens}/{first.num_warps}/{first.num_stages} S{first.splits}"
        return text


def tile(tokens: int, num_warps: int, num_stages: int, is_ahead: int, splits: int) -> Tiles:
    own = DecodeTile(
        tokens=tokens,
        num_warps=num_warps,
        num_stages=num_stages,
        is_ahead=bool(is_ahead),
        splits=splits,
    )
    return Tiles(own)


def shipped(case: Case) -> Tiles:
    own = decode_tile(case.work, has_shared=bool(case.group_rows))
    return Tiles(own, shared_tile(case.work) if case.group_rows else None)


PLAIN_CASES = [
    *(Case(LLAMA, rows, 1150) for rows in (128, 32, 256, 64, 192, 8, 1, 2)),
    *(Case(QWEN, rows, 700) for rows in (256, 128, 32, 192, 64, 8, 2, 1)),
    *(Case(QWEN_MOE, rows, 1150) for rows in (128, 64, 32, 8, 1)),
]
SHARED_CASES = [
    Case(LLAMA, 256, SHARED + 160, 32, SHARED),
    Case(LLAMA, 32, SHARED + 160, 32, SHARED),
    Case(QWEN, 256, SHARED + 160, 32, SHARED),
    Case(QWEN_MOE, 256, SHARED + 160, 32, SHARED),
]
BREAK_EVEN = [
    Case(LLAMA, rows, shared + 160, count, shared)
    for rows, shared, count in itertools.product((32, 256), (256, 1024), (2, 4, 8))
]


def variants(case: Case) -> Iterator[Tiles]:
    """Other tiles worth a try."""
    if case.group_rows:
        first = shared_tile(case.work)
        own = shipped(case).own
        for splits, num_stages in ((first.splits, 2), (first.splits * 2, 3), (1, 3)):
            shared = SharedTile(
                tokens=64,
                num_warps=first.num_warps,
                num_stages=num_stages,
                splits=splits,
                lanes=first.lanes,
            )
            yield Tiles(own, shared)
        for tokens, num_warps, is_ahead in ((64, 2, 0), (64, 4, 1), (32, 1, 1)):
            yield Tiles(tile(tokens, num_warps, 3, is_ahead, own.splits).own, first)
    elif case.num_rows >= 64:
        yield from (tile(32, 2, 4, 1, 1), tile(64, 4, 3, 1, 1), tile(64, 2, 3, 0, 2))
    elif case.num_rows == 32:
        yield from (tile(64, 4, 3, 1, 1), tile(64, 2, 3, 0, 2), tile(32, 2, 3, 1, 2))
        yield from (tile(32, 2, 3, 1, 1), tile(64, 4, 3, 1, 4))
    else:
        yield from (tile(32, 2, 3, 1, splits) for splits in (8, 16, 32))
        yield from (tile(64, 4, 3, 1, splits) for splits in (4, 8, 16))


def every_variant() -> Iterator[tuple[Case, Tiles]]:
    """In the order in which they are timed: variants of the shapes that say most."""
    for case in (
        *(Case(LLAMA, rows, 1150) for rows in (32, 128)),
        *(Case(QWEN, rows, 700) for rows in (32, 8, 64, 256)),
        SHARED_CASES[0],
        SHARED_CASES[1],
        *(Case(LLAMA, rows, 1150) for rows in (8, 1)),
        Case(QWEN_MOE, 32, 1150),
    ):
        for tiles in variants(case):
            if tiles != shipped(case):
                yield case, tiles


@dataclass(frozen=True)
class Layer:
    """Inputs of one launch in a chain."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    rows: PagedRows
    num_items: torch.Tensor
    items: torch.Tensor
    row_tokens: torch.Tensor


def run(
    layer: Layer,
    tiles: Tiles,
    launch: dict[str, object],
    rule: ScoreRule,
    *,
    is_poisoned: bool = False,
) -> torch.Tensor:
    """``is_poisoned``: what is not written shows as NaN."""
    num_rows, num_heads, _ = layer.queries.shape
    part = None
    out = layer.queries.new_empty(num_rows, num_heads * HEAD_DIM)
    if tiles.shared is not None:
        parts = num_parts(tiles.own, tiles.shared.splits)
        size = (num_rows, num_heads, parts)
        part = SharedPart(
            means=layer.queries.new_empty(*size, HEAD_DIM),
            log_sums=layer.queries.new_empty(size, dtype=torch.float32),
            row_tokens=layer.row_tokens,
            splits=tiles.shared.splits,
        )
        if is_poisoned:
            part.means.fill_(float("nan"))
            part.log_sums.fill_(float("nan"))
        shared_prefix_attention(
            layer.queries,
            layer.keys,
            layer.values,
            layer.rows,
            rule,
            items=layer.items,
            num_items=layer.num_items,
            item_rows=SHARED_ITEM_ROWS,
            tile=tiles.shared,
            part=part,
            launch=launch,
        )
    if is_poisoned:
        out.fill_(float("nan"))
    return decode_attention(
        layer.queries,
        layer.keys,
        layer.values,
        layer.rows,
        rule,
        tile=tiles.own,
        launch=launch,
        shared=part,
        out=out,
    )


class Pools:
    """Keys and values of a few layers, and rows over pages of their own in them."""

    def __init__(self, device: str, num_pages: int) -> None:
        self._device = device
        self._num_pages = num_pages
        self._by_kv_heads: dict[int, list[torch.Tensor]] = {}

    def chain(self, case: Case) -> list[Layer]:
        """As many launches over different pages as the pools hold, up to 32."""
        heads = case.heads
        if heads.num_kv_heads not in self._by_kv_heads:
            self._by_kv_heads.clear()
            size = (self._num_pages * PAGE_SIZE, heads.num_kv_heads, HEAD_DIM)
            self._by_kv_heads[heads.num_kv_heads] = [
                torch.empty(size, dtype=BFLOAT16, device=self._device).normal_()
                for _ in range(2 * COPIES)
            ]
        pools = self._by_kv_heads[heads.num_kv_heads]
        shared = case.shared // PAGE_SIZE
        own = -(-case.length // PAGE_SIZE) - shared
        needed = case.num_rows * own + len(case.groups) * shared
        order = torch.randperm(self._num_pages - 1, dtype=torch.int32) + 1
        layers = []
        for number in range(min(32, COPIES * (len(order) // needed))):
            copy = number % COPIES
            first = number // COPIES * needed
            pages = order[first : first + needed]
            table = torch.zeros(case.num_rows + 1, MAX_PAGES, dtype=torch.int32)
            for row in range(case.num_rows):
                start = len(case.groups) * shared + row * own
                table[row + 1, shared : shared + own] = pages[start : start + own]
                if case.group_rows:
                    group = row // case.group_rows * shared
                    table[row + 1, :shared] = pages[group : group + shared]
            layers.append(self._layer(case, table, (pools[2 * copy], pools[2 * copy + 1])))
        return layers

    def _layer(
        self, case: Case, table: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor]
    ) -> Layer:
        device, num_rows = self._device, case.num_rows
        most = max(num_rows // 4, num_shared_items(case.groups))
        work = shared_work_items(case.groups, num_rows, most)
        return Layer(
            queries=torch.randn(
                num_rows, case.heads.num_heads, HEAD_DIM, dtype=BFLOAT16, device=device
            ),
            keys=pools[0],
            values=pools[1],
            rows=PagedRows(
                page_table=table.to(device),
                row_slots=torch.arange(1, num_rows + 1, device=device),
                row_lengths=torch.full((num_rows,), case.length, dtype=torch.int32, device=device),
                page_size=PAGE_SIZE,
            ),
            num_items=torch.tensor([work.num_items], dtype=torch.int32, device=device),
            items=torch.from_numpy(work.items).to(device),
            row_tokens=torch.from_numpy(work.row_tokens).to(device),
        )


def expected(layer: Layer, row: int, rule: ScoreRule = RULE) -> torch.Tensor:
    """One row by float32 torch."""
    length = int(layer.rows.row_lengths[row])
    first = 0 if rule.window is None else max(0, length - rule.window)
    position = torch.arange(first, length, device=layer.queries.device)
    pages = layer.rows.page_table[layer.rows.row_slots[row]][position // PAGE_SIZE].long()
    places = pages * PAGE_SIZE + position % PAGE_SIZE
    keys, values = layer.keys[places].float(), layer.values[places].float()
    query = layer.queries[row].float().view(keys.shape[1], -1, HEAD_DIM)
    weights = torch.softmax(torch.einsum("kgd,tkd->kgt", query, keys) * rule.scale, -1)
    return torch.einsum("kgt,tkd->kgd", weights, values).flatten()


def check(case: Case, tiles: Tiles, layers: list[Layer], rule: ScoreRule = RULE) -> float:
    """Rows of random lengths, against the reference; gives the largest relative error."""
    layer = layers[-1]
    whole = layer.rows.row_lengths.clone()
    lengths = layer.rows.row_lengths
    least = max(1, case.shared + 1)
    lengths.copy_(torch.randint(least, case.length + 1, (case.num_rows,), dtype=torch.int32))
    lengths[-1] = case.length
    found = run(layer, tiles, dict(PLAIN), rule, is_poisoned=True)
    dependent = run(layer, tiles, DEPENDENT, rule, is_poisoned=True)
    worst = relative_error(dependent, found)
    assert worst == 0, f"{case}, {tiles}: a dependent launch gives something else ({worst})"
    for row in {0, case.num_rows // 2, case.num_rows - 1}:
        error = require_close(f"{case}, {tiles}", found[row], expected(layer, row, rule), 1e-2)
        worst = max(worst, error)
    lengths.copy_(whole)
    return worst


def clock(layers: list[Layer], tiles: Tiles, launch: dict[str, object] = DEPENDENT) -> float:
    def work() -> None:
        for layer in layers:
            run(layer, tiles, launch, RULE)

    return time_work(work, replays=4, rounds=5) / len(layers)


def launch_all() -> None:
    """What is launched below, with tensors that hold nothing."""
    cases = [*PLAIN_CASES, *SHARED_CASES, *BREAK_EVEN]
    wanted = {
        (case.heads, tiles): case
        for case, tiles in [*((case, shipped(case)) for case in cases), *every_variant()]
    }
    for (heads, tiles), case in wanted.items():
        pool = empty(PAGE_SIZE, heads.num_kv_heads, HEAD_DIM)
        rows = PagedRows(
            page_table=empty(case.num_rows + 1, MAX_PAGES, dtype=torch.int32),
            row_slots=empty(case.num_rows, dtype=torch.int64),
            row_lengths=empty(case.num_rows, dtype=torch.int32),
            page_size=PAGE_SIZE,
        )
        queries = empty(case.num_rows, heads.num_heads, HEAD_DIM)
        items = empty(8, 3, dtype=torch.int32)
        layer = Layer(queries, pool, pool, rows, items[0, :1], items, rows.row_lengths)
        for launch in (DEPENDENT, PLAIN):
            run(layer, tiles, dict(launch), RULE)


class Session:
    """Checks and times cases until the time is over."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._pools = Pools("cuda", POOL_PAGES)
        self.failures: list[str] = []

    def shipped(self, cases: list[Case]) -> None:
        for case in cases:
            if self._readings.seconds() > LIMIT_S:
                return
            layers, tiles = self._pools.chain(case), shipped(case)
            name = f"{case.heads.name} {case.num_rows} x {case.length}"
            if case.group_rows:
                name += f", {len(case.groups)} groups of {case.group_rows} over {case.shared}"
            self._time(f"{name}: {tiles}", case, tiles, layers)
            if case.group_rows:
                alone = shipped(Case(case.heads, case.num_rows, case.length))
                self._readings.add(f"{name}: not as groups, {alone}", clock(layers, alone))

    def variants(self) -> None:
        layers_of: dict[Case, list[Layer]] = {}
        for case, tiles in every_variant():
            if self._readings.seconds() > LIMIT_S:
                return
            if case not in layers_of:
                layers_of = {case: self._pools.chain(case)}
            name = f"{case.heads.name} {case.num_rows} x {case.length}, try {tiles}"
            self._time(name, case, tiles, layers_of[case])

    def spread(self) -> None:
        """Rows from 100 positions on, the longest first (as rows are planned) and in any order."""
        for heads, num_rows in itertools.product((QWEN, LLAMA), (256, 128, 64, 32)):
            case = Case(heads, num_rows, 1150)
            layers = self._pools.chain(case)
            for name, is_sorted in (("longest first", True), ("in any order", False)):
                if self._readings.seconds() > LIMIT_S:
                    return
                lengths = torch.linspace(1150, 100, num_rows).int()
                if not is_sorted:
                    lengths = lengths[torch.randperm(num_rows)]
                for layer in layers:
                    layer.rows.row_lengths.copy_(lengths)
                num_bytes = int(lengths.sum()) * heads.num_kv_heads * HEAD_DIM * 4
                splits = {1, 2} if num_rows <= 64 else {1}
                for tiles in {shipped(case), *(tile(64, 2, 3, 0, count) for count in splits)}:
                    label = f"{heads.name} {num_rows} x 100 to 1150, {name}: {tiles}"
                    self._readings.add(label, clock(layers, tiles), num_bytes=num_bytes)

    def windows(self) -> None:
        case = Case(LLAMA, 64, 4096)
        if self._readings.seconds() > LIMIT_S:
            return
        for window in (1024, 4000):
            rule = ScoreRule(scale=HEAD_DIM**-0.5, window=window)
            error = check(case, shipped(case), self._pools.chain(case), rule)
            self._readings.add(f"window of {window} is right", error=round(error, 5))

    def _time(self, name: str, case: Case, tiles: Tiles, layers: list[Layer]) -> None:
        try:
            error = check(case, tiles, layers)
            us = clock(layers, tiles)
        except (AssertionError, RuntimeError) as failure:
            self.failures.append(f"{name}: {failure}")
            self._readings.add(name, failure=str(failure)[:300])
            return
        self._readings.add(name, us, num_bytes=case.num_bytes, error=round(error, 5))


def measure(readings: Readings) -> None:
    torch.manual_seed(0)
    count = precompile(launch_all)
    readings.add("decode attention compiled", count=count, seconds=round(readings.seconds(), 1))
    session = Session(readings)
    session.shipped([case for case in PLAIN_CASES if case.heads is not QWEN_MOE])
    session.shipped(SHARED_CASES[:3])
    session.spread()
    session.variants()
    session.shipped(BREAK_EVEN)
    session.shipped([case for case in PLAIN_CASES if case.heads is QWEN_MOE])
    session.shipped(SHARED_CASES[3:])
    session.windows()
    assert not session.failures, session.failures
