"""The extend attention kernel against attention of one token at a time, over odd shapes."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere
from tests.worker.kernels.gpu.noted_extend import launch_extend

from mizzen_worker.kernels.gpu import extend_attention as module
from mizzen_worker.kernels.gpu.attention_tile import ScoreRule
from mizzen_worker.kernels.gpu.claimed_driver import SHARED_MEMORY_BY_CAPABILITY
from mizzen_worker.kernels.gpu.extend_attention import extend_attention
from mizzen_worker.kernels.gpu.extend_plan import (
    ExtendRows,
    ExtendTile,
    HeadShape,
    choose_tile,
    plan_extend,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16] if torch.cuda.is_available() else [torch.float32]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Online softmax adds in another order; bfloat16 also rounds the weights."""

SHARED = SHARED_MEMORY_BY_CAPABILITY[90]

BATCHES = {
    "one prompt": [(0, 41)],
    "behind a prefix": [(70, 23)],
    "at borders of blocks": [(64, 64), (63, 2), (128, 1)],
    "mixed with decode rows": [(0, 19), (45, 30), (130, 1), (0, 1)],
    "padded": [(0, 5), (0, 0), (3, 2), (0, 0)],
}
SHAPES = [
    (HeadShape(num_heads=2, num_kv_heads=2, head_dim=16), 1),
    (HeadShape(num_heads=6, num_kv_heads=2, head_dim=48), 3),
    (HeadShape(num_heads=8, num_kv_heads=2, head_dim=32), 16),
    (HeadShape(num_heads=4, num_kv_heads=1, head_dim=128), 64),
]


@dataclasses.dataclass(frozen=True)
class Case:
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    rows: ExtendRows
    starts: list[int]
    lengths: list[int]


def case_of(
    heads: HeadShape, page_size: int, batch: list[tuple[int, int]], dtype: torch.dtype
) -> Case:
    """Scrambled pages; what lies beyond a row's length, and in the sink, is NaN."""
    generator = torch.Generator().manual_seed(len(batch))
    needed = [-(-(start + count) // page_size) for start, count in batch]
    num_pages, max_pages = sum(needed) + 1, max(needed) + 2
    order = torch.randperm(num_pages - 1, generator=generator) + 1
    table = torch.zeros(len(batch) + 1, max_pages, dtype=torch.int32)
    shape = (num_pages * page_size, heads.num_kv_heads, heads.head_dim)
    keys, values = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    taken = 0
    slots = [len(batch) - row for row in range(len(batch))]
    starts, lengths = [0], []
    for slot, (start, count), pages in zip(slots, batch, needed, strict=True):
        table[slot, :pages] = order[taken : taken + pages]
        taken += pages
        places = _places(table[slot], start + count, page_size)
        for cache in (keys, values):
            cache[places] = torch.randn(len(places), *shape[1:], generator=generator)
        starts.append(starts[-1] + count)
        lengths.append(start + count)
    # A view of a wider buffer, as of the queries beside keys and values in one projection.
    wide = torch.randn(starts[-1], heads.num_heads + 3, heads.head_dim, generator=generator)
    on = {"device": DEVICE, "dtype": dtype}
    return Case(
        queries=wide.to(**on)[:, : heads.num_heads],
        keys=keys.to(**on),
        values=values.to(**on),
        rows=ExtendRows(
            page_table=table.to(DEVICE),
            row_slots=torch.tensor(slots, device=DEVICE),
            row_starts=torch.tensor(starts, dtype=torch.int32, device=DEVICE),
            row_lengths=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
            page_size=page_size,
        ),
        starts=starts,
        lengths=lengths,
    )


def _places(pages: torch.Tensor, length: int, page_size: int) -> torch.Tensor:
    index = torch.arange(length, device=pages.device)
    return pages[index // page_size].long() * page_size + index % page_size


def expected_of(case: Case, heads: HeadShape, rule: ScoreRule) -> torch.Tensor:
    """Float32, all heads of one token together."""
    output = torch.empty(len(case.queries), heads.num_heads, heads.head_dim, device=DEVICE)
    for row, length in enumerate(case.lengths):
        pages = case.rows.page_table[case.rows.row_slots[row]]
        places = _places(pages, length, case.rows.page_size)
        for token in range(case.starts[row], case.starts[row + 1]):
            after = length - case.starts[row + 1] + token + 1
            seen = places[0 if rule.window is None else max(0, after - rule.window) : after]
            keys = case.keys[seen].float().repeat_interleave(heads.group, 1) * rule.key_scale
            values = case.values[seen].float().repeat_interleave(heads.group, 1) * rule.value_scale
            scores = torch.einsum("hd,thd->ht", case.queries[token].float(), keys) * rule.scale
            if rule.soft_cap:
                scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
            if rule.sinks is not None:
                scores = torch.cat([scores, rule.sinks[:, None]], dim=1)
            weights = torch.softmax(scores, dim=1)[:, : len(seen)]
            output[token] = torch.einsum("ht,thd->hd", weights, values)
    return output.flatten(1)


def check(heads: HeadShape, case: Case, rule: ScoreRule, tile: ExtendTile | None = None) -> None:
    dtype = case.queries.dtype
    plan = plan_extend(
        case.rows, heads, len(case.queries), tile or choose_tile(heads, dtype, SHARED)
    )
    out = torch.full((len(case.queries), heads.num_heads * heads.head_dim), float("nan"))
    out = out.to(DEVICE, dtype)
    found = extend_attention(case.queries, case.keys, case.values, plan, rule, out)
    torch.testing.assert_close(
        found.float(), expected_of(case, heads, rule), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(BATCHES))
@pytest.mark.parametrize(("heads", "page_size"), SHAPES, ids=str)
def test_every_token_equals_the_reference(
    heads: HeadShape, page_size: int, name: str, dtype: torch.dtype
) -> None:
    check(heads, case_of(heads, page_size, BATCHES[name], dtype), ScoreRule(scale=0.25))


RULES = {
    "window": ScoreRule(scale=0.25, window=29),
    "window of one": ScoreRule(scale=0.25, window=1),
    "soft cap": ScoreRule(scale=0.7, soft_cap=1.5),
    "scales of stored values": ScoreRule(scale=0.25, key_scale=0.5, value_scale=3.0),
    "window and soft cap": ScoreRule(scale=0.25, window=64, soft_cap=2.0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    heads, page_size = SHAPES[1]
    case = case_of(heads, page_size, BATCHES["mixed with decode rows"], dtype)
    sinks = torch.linspace(-2, 2, heads.num_heads, device=DEVICE)
    check(heads, case, RULES[name])
    check(heads, case, dataclasses.replace(RULES[name], sinks=sinks))


@triton.jit
def _absorb_unseen(total_ptr, output_ptr, size: tl.constexpr):
    i = tl.arange(0, size)
    tile = tl.full([size, size], 1.0, tl.float32)
    state = (tl.full([size], -1e30, tl.float32), tl.zeros([size], tl.float32), tile * 0)
    _, total, output = module._absorb(
        state,
        tile,
        tile,
        tile,
        i[:, None] < i[None, :] * 0,
        0.36,
        0.0,
        HAS_CAP=False,
        IS_MASKED=True,
        PRECISION="ieee",
    )
    tl.store(total_ptr + i, total)
    tl.store(output_ptr + i[:, None] * size + i[None, :], output)


def test_a_block_that_a_query_does_not_see_has_no_weight() -> None:
    """A later block would wipe out finite weights, but compiled they were infinite."""
    total, output = torch.ones(16, device=DEVICE), torch.ones(16, 16, device=DEVICE)
    _absorb_unseen[(1,)](total, output, size=16)
    assert not total.any()
    assert not output.any()


def test_blocks_within_a_page_are_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, page_size = SHAPES[2][0], 32
    tile = ExtendTile(query_rows=16, key_block=16, num_stages=2, num_warps=4)
    case = case_of(heads, page_size, BATCHES["mixed with decode rows"], DTYPES[-1])
    plan = plan_extend(case.rows, heads, len(case.queries), tile)
    assert module._has_tma(plan, case.keys, None)
    check(heads, case, ScoreRule(scale=0.25), tile)
    monkeypatch.setattr(module, "_has_tma", lambda *_: False)
    check(heads, case, ScoreRule(scale=0.25), tile)


def test_map_finds_every_tile_of_many_rows() -> None:
    counts = [row % 5 for row in range(150)]
    starts = torch.tensor([0, *counts]).cumsum(0).int().to(DEVICE)
    nothing = torch.zeros(len(counts), dtype=torch.int64, device=DEVICE)
    rows = ExtendRows(
        page_table=nothing[:, None].int(),
        row_slots=nothing,
        row_starts=starts,
        row_lengths=nothing.int(),
        page_size=1,
    )
    heads = HeadShape(num_heads=8, num_kv_heads=1, head_dim=16)
    tile = ExtendTile(query_rows=16, key_block=16, num_stages=2, num_warps=4)
    plan = plan_extend(rows, heads, int(starts[-1]) + 7, tile)
    expected = [[row, first] for row, count in enumerate(counts) for first in range(0, count, 2)]
    found = plan.tiles.tolist()
    assert found[: len(expected)] == expected
    assert all(row == -1 for row, _ in found[len(expected) :])


def test_wrong_shapes_are_refused() -> None:
    heads, page_size = SHAPES[0]
    case = case_of(heads, page_size, BATCHES["padded"], torch.float32)
    plan = plan_extend(
        case.rows, heads, len(case.queries), choose_tile(heads, torch.float32, SHARED)
    )
    with pytest.raises(ValueError, match="queries"):
        extend_attention(case.queries[:, :1], case.keys, case.values, plan, ScoreRule(scale=0.25))
    with pytest.raises(ValueError, match="cache"):
        extend_attention(case.queries, case.keys[:, :1], case.values, plan, ScoreRule(scale=0.25))
    short = dataclasses.replace(case.rows, row_lengths=case.rows.row_lengths[1:])
    with pytest.raises(ValueError, match="row_lengths"):
        plan_extend(short, heads, 3, choose_tile(heads, torch.float32, SHARED))


def launch_all() -> None:
    """Heads of the benchmarks' models, pages with and without boxes."""
    rule = ScoreRule(scale=0.25)
    shapes = [
        HeadShape(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
        for heads, kv_heads, head_dim in benchmark_models.HEADS
    ]
    for heads in shapes:
        for page_size in (16, 64):
            launch_extend(heads, rule, page_size=page_size)
    launch_extend(shapes[0], ScoreRule(scale=0.25, window=4096, soft_cap=50.0), page_size=16)
    for head_dim in (64, 80, 256):
        launch_extend(HeadShape(num_heads=8, num_kv_heads=2, head_dim=head_dim), rule, page_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_shipped_configurations_compile(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        # SM 89 spills a few bytes: its registers are limited by the warps that fit.
        assert record["stack"] <= (0 if capability == 90 else 64), record
