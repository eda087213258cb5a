"""Expert part of qwen30b-a3b on an H200: correct first, then its time, and tiles worth trying.

Predicted (us; the references' prototypes on the same machine): one token 15.6 gate and up + 8.3
down + 3.1 choice + 1.4 router. 64 tokens 182.6 + 95.9 (125 experts, 4.3 and 4.1 TB/s), 16 tokens
115.6 + 60.6 (78 experts); router and choice about 2.5 each. 128 tokens 190 + 100. Prefill of 8,192
tokens: 618 GFLOP at 550 TFLOP/s, 1,120, and 100 for the sum over slots.

Programs that stay (``ManyTile.programs``), 8,192 tokens: down 430 to 330 us, because 12 steps of K
leave a tile's begin and end bare, and tiles of 128 x 128 ask L2 for 7.4 of its 9.2 TB/s; gate and
up 800 to 700, where gathered rows pipeline as well as copied ones. A block that is not full costs
12 % of both, whatever the tile. Without sorting, steps of 64 and 128 tokens: -2.5 us.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from tests.benchmark_models import QWEN30B_A3B, expert_sizes
from tests.gpu.measure.harness import Readings, capture, precompile, require_close, time_work

from mizzen_worker.kernels.gpu.expert_gemv import DownTile, down_chosen_add, gated_chosen
from mizzen_worker.kernels.gpu.expert_routing import choose_experts, sort_by_expert
from mizzen_worker.kernels.gpu.gemv import GemvTile, linear
from mizzen_worker.kernels.gpu.grouped_gemm import ManyTile, down_many, gated_many
from mizzen_worker.kernels.gpu.grouped_skinny_gemm import down_few, gated_few
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.residual_norm import add_norm
from mizzen_worker.kernels.gpu.row_tiles import RowTiles
from mizzen_worker.kernels.gpu.skinny_gemm import multiply
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.kernels.reference import moe as reference
from mizzen_worker.layers.gpu.expert_tiles import QWEN_30B_A3B, router_tile
from mizzen_worker.layers.gpu.experts import add_experts_of_one, expert_products
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, Routing

EXPERTS, CHOSEN, SIZE, INNER = expert_sizes(QWEN30B_A3B)
EPS = 1e-6
LAYERS = 4
LIMIT = 1.2e-2
"""Relative error: weights and rows are the same; activations and products are rounded."""
DEPENDENT: Mapping[str, Any] = {"PDL": 1, "launch_pdl": True}
SECONDS = 80.0

FEW_TOKENS = (2, 4, 16, 64, 128, 256)
MANY_TOKENS = (1024, 8192)


def _pair(rows: int, columns: int, depth: int, stages: int, warps: int = 4) -> Tile:
    return Tile(
        rows=rows, columns=2 * columns, depth=depth, stages=stages, warps=warps, accumulators=2
    )


def _tile(rows: int, columns: int, depth: int, stages: int, warps: int = 4) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, stages=stages, warps=warps)


def _many(
    rows: int, columns: int, depth: int, stages: int, warps: int = 4, programs: int = 0
) -> ManyTile:
    return ManyTile(
        rows=rows, columns=columns, depth=depth, stages=stages, warps=warps, programs=programs
    )


GATED_ONE = [GemvTile(warps=4, rows=4, ahead=4), GemvTile(warps=8, rows=2, ahead=4)]
DOWN_ONE = [
    DownTile(warps=8, ahead=12),
    DownTile(warps=8, ahead=9),
    DownTile(warps=4, ahead=12),
    DownTile(warps=8, ahead=15),
]
PAIR, PAIR_WIDE = _pair(16, 64, 256, 3), _pair(64, 64, 128, 4)
SHIPPED_PAIR = _pair(16, 64, 128, 3)
DOWN, DOWN_WIDE = _tile(16, 128, 128, 3), _tile(64, 128, 64, 4)
GATED_FEW = {
    64: [
        RowTiles(narrow=PAIR, wide=PAIR_WIDE),
        RowTiles(narrow=SHIPPED_PAIR, wide=_pair(64, 64, 64, 4)),
        RowTiles(narrow=_pair(16, 128, 128, 3), wide=_pair(32, 128, 128, 2)),
    ],
    128: [
        RowTiles(narrow=SHIPPED_PAIR, wide=_pair(64, 64, 64, 4)),
        RowTiles(narrow=replace(SHIPPED_PAIR, ahead=512), wide=_pair(64, 64, 64, 4)),
        RowTiles(narrow=replace(SHIPPED_PAIR, ahead=2048), wide=_pair(64, 64, 64, 4)),
        RowTiles(narrow=PAIR, wide=PAIR_WIDE),
    ],
    256: [
        RowTiles(narrow=_pair(32, 64, 128, 5), wide=PAIR_WIDE),
        RowTiles(narrow=PAIR, wide=PAIR_WIDE),
        RowTiles(narrow=PAIR, wide=_pair(32, 64, 128, 5)),
    ],
}
DOWN_FEW = {
    64: [
        RowTiles(narrow=DOWN, wide=DOWN_WIDE),
        RowTiles(narrow=_tile(16, 128, 128, 6), wide=_tile(64, 128, 128, 3)),
        RowTiles(narrow=_tile(16, 256, 64, 3, 8), wide=_tile(64, 256, 64, 2, 8)),
        RowTiles(narrow=_tile(16, 256, 128, 3, 8), wide=_tile(64, 256, 64, 4, 8)),
    ],
    128: [
        RowTiles(narrow=DOWN, wide=DOWN_WIDE),
        RowTiles(narrow=replace(DOWN, ahead=512), wide=DOWN_WIDE),
        RowTiles(narrow=_tile(16, 128, 256, 3), wide=_tile(64, 128, 64, 4)),
        RowTiles(narrow=_tile(16, 64, 128, 4), wide=_tile(64, 64, 64, 4)),
    ],
    256: [
        RowTiles(narrow=_tile(32, 128, 128, 4), wide=_tile(64, 128, 128, 3)),
        RowTiles(narrow=DOWN, wide=DOWN_WIDE),
        RowTiles(narrow=DOWN, wide=_tile(32, 128, 128, 2)),
    ],
}
MANY_GATED = {
    8192: [
        _many(128, 256, 64, 3, 8),
        _many(128, 256, 64, 3, 8, 1),
        _many(128, 256, 64, 4, 8, 1),
        _many(256, 128, 64, 3, 8),
        _many(256, 128, 64, 3, 8, 1),
        _many(128, 128, 64, 3, 4),
        _many(128, 128, 64, 3, 4, 2),
    ],
    1024: [_many(128, 128, 64, 3, 8), _many(128, 128, 64, 3, 4, 2), _many(64, 256, 64, 4, 8, 1)],
}
MANY_DOWN = {
    8192: [
        _many(128, 256, 64, 3, 8, 1),
        _many(128, 256, 64, 3, 8),
        _many(128, 256, 64, 4, 8, 1),
        _many(256, 128, 64, 3, 8, 1),
        _many(256, 128, 64, 4, 8, 1),
        _many(128, 128, 64, 3, 4),
        _many(128, 128, 64, 3, 4, 2),
        _many(128, 128, 128, 3, 8, 1),
        _many(64, 256, 64, 3, 4, 1),
    ],
    1024: [_many(64, 128, 64, 4, 4), _many(64, 128, 64, 3, 4, 2), _many(64, 256, 64, 4, 8, 1)],
}
"""The shipped one first."""
CHECKED = (1, 2, 3, 16, 17, 64, 128, 200, 256, 512, 777, 1024, 8192)
GROUPS = 12
"""Of equal tokens, for steps whose tokens crowd on few experts, as made-up weights do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Rows of a step and what is made of them on the way, for ``tokens`` tokens."""

    tokens: int
    hidden: torch.Tensor
    normed: torch.Tensor
    logits: torch.Tensor
    chosen: torch.Tensor
    weights: torch.Tensor
    pairs: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor
    activations: torch.Tensor


Work = Callable[[Experts[GpuWeight], State, Mapping[str, Any]], Any]


def layer_on(device: str) -> Experts[GpuWeight]:
    def random(*shape: int, scale: float) -> GpuWeight:
        values = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return GpuWeight(values=values if device == "meta" else values.normal_(0, scale))

    return Experts(
        routing=Routing(num_chosen=CHOSEN, is_normalised=True),
        router=random(EXPERTS, SIZE, scale=SIZE**-0.5),
        gate_up=random(EXPERTS, 2 * INNER, SIZE, scale=SIZE**-0.5),
        down=random(EXPERTS, SIZE, INNER, scale=INNER**-0.5),
    )


def state_on(device: str, tokens: int, groups: int = 0) -> State:
    kind = {"dtype": torch.bfloat16, "device": device}
    hidden = torch.empty(tokens, SIZE, **kind)
    logits = torch.empty(1, tokens, EXPERTS, device=device)
    chosen = torch.empty(tokens, CHOSEN, dtype=torch.int32, device=device)
    pairs = (
        torch.empty(tokens * CHOSEN, dtype=torch.int32, device=device),
        torch.empty(EXPERTS + 1, dtype=torch.int32, device=device),
    )
    slots = torch.zeros(EXPERTS, tokens, dtype=torch.uint8, device=device)
    normed = torch.empty(tokens, SIZE, **kind)
    weights = torch.empty(tokens, CHOSEN, device=device)
    if device != "meta":
        hidden.normal_()
        if groups:
            hidden.copy_(hidden[torch.arange(tokens, device=device) * groups // tokens])
        normed.copy_(norm_of(hidden))
        logits.normal_()
        if groups:
            logits.copy_(logits[:, torch.arange(tokens, device=device) * groups // tokens])
        ids, shares = reference.choose_experts(logits[0], CHOSEN, is_normalised=True)
        chosen, weights = ids.int(), shares
        pairs = reference.sort_by_expert(ids, EXPERTS)
        choose_experts(logits, CHOSEN, is_normalised=True, launch=PLAIN, slots=slots)
    return State(
        tokens=tokens,
        hidden=hidden,
        normed=normed,
        logits=logits,
        chosen=chosen,
        weights=weights,
        pairs=pairs,
        slots=slots,
        activations=torch.zeros(tokens * CHOSEN, INNER, **kind),
    )


def norm_of(hidden: torch.Tensor) -> torch.Tensor:
    wide = hidden.float()
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS)


def _router(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    if state.tokens > 1:
        tile = router_tile(state.tokens)
        return multiply(state.normed, layer.router.values, tile, dtype=torch.float32, launch=launch)
    tile = QWEN_30B_A3B.router_one
    linear(
        state.hidden,
        layer.router.values,
        None,
        None,
        state.logits,
        norm_eps=EPS,
        tile=tile,
        launch=launch,
    )
    return None


def _choose(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    slots = state.slots if 1 < state.tokens <= max(FEW_TOKENS) else None
    return choose_experts(state.logits, CHOSEN, is_normalised=True, launch=launch, slots=slots)


def _sort(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    return sort_by_expert(state.chosen, EXPERTS, launch)


def _gated_one(tile: GemvTile) -> Work:
    return lambda layer, state, launch: gated_chosen(
        state.hidden,
        layer.gate_up.values,
        state.chosen,
        state.weights,
        eps=EPS,
        tile=tile,
        launch=launch,
    )


def _down_one(tile: DownTile) -> Work:
    return lambda layer, state, launch: down_chosen_add(
        state.activations,
        layer.down.values,
        state.chosen,
        state.hidden,
        tile=tile,
        launch=launch,
    )


def _gated(tile: ManyTile | RowTiles) -> Work:
    if isinstance(tile, ManyTile):
        return lambda layer, state, launch: gated_many(
            state.normed, layer.gate_up.values, state.weights, state.pairs, tile, launch
        )
    return lambda layer, state, launch: gated_few(
        state.normed,
        layer.gate_up.values,
        state.weights,
        state.slots,
        tile,
        launch,
    )


def _down(tile: ManyTile | RowTiles) -> Work:
    if isinstance(tile, ManyTile):
        return lambda layer, state, launch: down_many(
            state.activations, layer.down.values, CHOSEN, state.pairs, tile, launch
        )
    return lambda layer, state, launch: down_few(
        state.activations,
        layer.down.values,
        CHOSEN,
        state.slots,
        tile,
        launch,
    )


def _sum(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    products = state.activations.new_empty(CHOSEN, state.tokens, SIZE)
    return add_norm(state.hidden, products, EPS, launch)


def _whole_one(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    return add_experts_of_one(state.hidden, layer, EPS, launch)


def _whole(layer: Experts[GpuWeight], state: State, launch: Mapping[str, Any]) -> object:
    return add_norm(state.hidden, expert_products(state.normed, layer, launch), EPS, launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to be timed; ``groups`` of equal tokens, 0: all are different."""

    name: str
    tokens: int
    work: Work
    groups: int = 0


def cases() -> Iterator[Case]:
    """Everything that is timed, most important first."""
    yield Case(name="whole part", tokens=1, work=_whole_one)
    for tokens in (*FEW_TOKENS, *MANY_TOKENS):
        yield Case(name="whole part", tokens=tokens, work=_whole)
    for tokens in (64, 128):
        yield Case(name="whole part", tokens=tokens, work=_whole, groups=GROUPS)
    yield from _product_cases(MANY_GATED, MANY_DOWN)
    for name, work in (("router", _router), ("choice", _choose)):
        for tokens in (1, *FEW_TOKENS, *MANY_TOKENS):
            yield Case(name=name, tokens=tokens, work=work)
    for tokens in MANY_TOKENS:
        yield Case(name="sorting", tokens=tokens, work=_sort)
    for tokens in (*FEW_TOKENS, *MANY_TOKENS):
        yield Case(name="sum and norm", tokens=tokens, work=_sum)
    for gemv in GATED_ONE:
        yield Case(name=f"gate/up {gemv}", tokens=1, work=_gated_one(gemv))
    for down in DOWN_ONE:
        yield Case(name=f"down {down}", tokens=1, work=_down_one(down))
    yield from _product_cases(GATED_FEW, DOWN_FEW)


def _product_cases(
    gated: Mapping[int, Sequence[ManyTile | RowTiles]],
    down: Mapping[int, Sequence[ManyTile | RowTiles]],
) -> Iterator[Case]:
    for tokens, tiles in down.items():
        for tile in tiles:
            yield Case(name=f"down {_short(tile)}", tokens=tokens, work=_down(tile))
        for tile in gated[tokens]:
            yield Case(name=f"gate/up {_short(tile)}", tokens=tokens, work=_gated(tile))


def _short(tile: Tile | RowTiles) -> str:
    if isinstance(tile, RowTiles):
        return f"{_short(tile.narrow)} {_short(tile.wide)}"
    ahead = f", {tile.ahead} ahead" if tile.ahead else ""
    programs = f", {tile.programs} stay" if isinstance(tile, ManyTile) and tile.programs else ""
    return f"{tile.rows}/{tile.columns}/{tile.depth}/{tile.stages}/{tile.warps}{ahead}{programs}"


def launch_all() -> None:
    """What is launched below, with tensors that hold nothing."""
    layer = layer_on("meta")
    for case in cases():
        usual = DEPENDENT if case.tokens <= max(FEW_TOKENS) else PLAIN
        launches = [DEPENDENT, PLAIN] if case.work in (_whole, _whole_one) else [usual]
        for launch in launches:
            case.work(layer, state_on("meta", case.tokens), launch)


def expected_products(
    layer: Experts[GpuWeight], normed: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weighted sums [tokens, size] in float32, by the experts that the kernels chose."""
    total = torch.zeros(len(normed), SIZE, device="cuda")
    for expert in range(EXPERTS):
        tokens, slots = (chosen == expert).nonzero(as_tuple=True)
        if len(tokens):
            both = normed[tokens].float() @ layer.gate_up.values[expert].float().t()
            gate, up = both.view(len(tokens), INNER, 2).unbind(2)
            inner = torch.nn.functional.silu(gate) * up * weights[tokens, slots, None]
            total.index_add_(0, tokens, inner @ layer.down.values[expert].float().t())
    return total


def check_choice(layer: Experts[GpuWeight], state: State, normed: torch.Tensor) -> tuple[Any, Any]:
    """The kernels' choice, which is the reference's but for logits that nearly tie."""
    logits = normed.float() @ layer.router.values.float().t()
    ids, _ = reference.choose_experts(logits, CHOSEN, is_normalised=True)
    found, weights = choose_experts(
        logits.unsqueeze(0).contiguous(), CHOSEN, is_normalised=True, launch=DEPENDENT
    )
    assert torch.equal(found.long(), ids)
    order, offsets = sort_by_expert(found, EXPERTS, DEPENDENT)
    wanted = reference.sort_by_expert(found.long(), EXPERTS)
    assert torch.equal(order, wanted[0])
    assert torch.equal(offsets, wanted[1])
    return found, weights


def check(readings: Readings, layers: list[Experts[GpuWeight]]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    # Fresh memory is NaN: what a kernel leaves out shows.
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    for tokens, groups in (*((n, 0) for n in CHECKED), (64, 3), (128, GROUPS), (256, 2)):
        state = state_on("cuda", tokens, groups)
        normed = norm_of(state.hidden).bfloat16() if tokens > 1 else norm_of(state.hidden)
        chosen, weights = check_choice(layers[0], state, normed)
        wanted = expected_products(layers[0], normed, chosen, weights)
        for launch in (PLAIN, DEPENDENT):
            if tokens == 1:
                found = add_experts_of_one(state.hidden, layers[0], EPS, launch).float()
                found = found - state.hidden.float()
            else:
                found = expert_products(normed, layers[0], launch).float().sum(0)
            error = require_close(f"{tokens} tokens", found, wanted, LIMIT)
        readings.add(
            f"{tokens} tokens",
            error=round(error, 5),
            experts=len(chosen.unique()),
            most=int(torch.bincount(chosen.flatten()).max()),
        )
    check_many(readings, layers[0])
    torch.use_deterministic_algorithms(mode=False)
    check_chain(readings, layers)


def check_many(readings: Readings, layer: Experts[GpuWeight]) -> None:
    """Every tile for many tokens, with the expected activations for the other product's tiles."""
    for tokens, down_tiles in MANY_DOWN.items():
        state = state_on("cuda", tokens)
        wanted = expected_products(layer, state.normed, state.chosen, state.weights)
        gated_tiles = MANY_GATED[tokens]
        pairs = [(gated, down_tiles[0]) for gated in gated_tiles]
        pairs += [(gated_tiles[0], down) for down in down_tiles[1:]]
        for gated, down in pairs:
            name = f"{tokens} tokens, {_short(gated)}, {_short(down)}"
            try:
                inner = _gated(gated)(layer, state, PLAIN)
                found = _down(down)(layer, replace(state, activations=inner), PLAIN)
            except triton.runtime.errors.OutOfResources as too_much:
                readings.add(f"{name}: {too_much}")
                continue
            error = require_close(name, found.float().sum(0), wanted, LIMIT)
            readings.add(name, error=round(error, 5))


def check_chain(readings: Readings, layers: list[Experts[GpuWeight]]) -> None:
    """A captured dependent chain gives the bits of plain launches: nothing is read too early."""
    first = torch.randn(1, SIZE, device="cuda").bfloat16()

    def chain(launch: Mapping[str, Any]) -> torch.Tensor:
        hidden = first
        for layer in layers * 3:
            hidden = add_experts_of_one(hidden, layer, EPS, launch)
        return hidden

    found: list[torch.Tensor] = []
    graph = capture(lambda: found.append(chain(DEPENDENT)))
    for _ in range(20):
        first.normal_()
        expected = chain(PLAIN)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found[-1], expected)
    readings.add("captured chain of one token", equal_replays=20)


def measure(readings: Readings) -> None:
    count = precompile(launch_all)
    readings.add("compiled", count=count, seconds=round(readings.seconds(), 1))
    layers = [layer_on("cuda") for _ in range(LAYERS)]
    check(readings, layers)
    readings.add("checked", seconds=round(readings.seconds(), 1))
    states: dict[tuple[int, int], list[State]] = {}
    for case in cases():
        if readings.seconds() > SECONDS:
            readings.add("out of time", before=f"{case.name}, {case.tokens} tokens")
            return
        key = (case.tokens, case.groups)
        is_few = case.tokens <= max(FEW_TOKENS)
        if key not in states:
            made = [state_on("cuda", case.tokens, case.groups) for _ in layers]
            states = (states if is_few else {}) | {key: made}
        try:
            _time(readings, case, layers, states[key], DEPENDENT if is_few else PLAIN)
        except triton.runtime.errors.OutOfResources as error:
            readings.add(f"{case.name}, {case.tokens} tokens: {error}")


def _time(
    readings: Readings,
    case: Case,
    layers: list[Experts[GpuWeight]],
    states: list[State],
    launch: Mapping[str, Any],
) -> None:
    def chain() -> None:
        for layer, state in zip(layers, states, strict=True):
            case.work(layer, state, launch)

    us = time_work(chain, replays=4, rounds=5) / len(layers)
    active = sum(len(state.chosen.unique()) for state in states) / len(states)
    name, tokens = case.name, case.tokens
    matrices = 3 if "whole" in name else 2 if "gate/up" in name else 1 if "down" in name else 0
    num_bytes = active * matrices * INNER * SIZE * 2
    flops = 2 * tokens * CHOSEN * matrices * INNER * SIZE
    readings.add(
        f"{name}, {tokens} tokens{' in groups' if case.groups else ''}",
        us,
        num_bytes=num_bytes,
        experts=round(active, 1),
        tflops=round(flops / us * 1e-6, 1),
    )
