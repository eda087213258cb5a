"""Rows that share pages get what they would get alone: groups, splits, windows, page sizes."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty
from tests.worker.kernels.gpu.paged_rows import (
    DEVICE,
    DTYPES,
    TOLERANCE,
    Group,
    Rows,
    make_rows,
    rule_of,
)

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile, shared_tile
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import (
    DecodeTile,
    SharedPart,
    decode_attention,
    num_parts,
)
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, shared_prefix_attention
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS

LENGTHS = [41, 33, 60, 5, 70, 70, 81, 0]
GROUPS = (Group(0, 3, 32), Group(4, 3, 64))


def attend(
    rows: Rows,
    groups: tuple[Group, ...],
    rule: ScoreRule,
    *,
    shared_splits: int,
    splits: int,
    lanes: int = 2,
    spare: int = 1,
) -> torch.Tensor:
    """Both phases; what nobody writes is poison."""
    items = torch.full((len(groups) + spare, 3), 7_777_777, dtype=torch.int32)
    row_tokens = torch.zeros(len(rows.lengths), dtype=torch.int32)
    for number, group in enumerate(groups):
        items[number] = torch.tensor([group.first, group.count, group.tokens])
        row_tokens[group.first : group.first + group.count] = group.tokens
    own = DecodeTile(tokens=16, num_warps=2, num_stages=2, is_ahead=True, splits=splits)
    num_rows, num_heads = rows.queries.shape[:2]
    parts = num_parts(own, shared_splits)
    part = SharedPart(
        means=torch.full_like(
            rows.queries[:, :, None], float("nan"), dtype=rows.queries.dtype
        ).repeat(1, 1, parts, 1),
        log_sums=torch.full((num_rows, num_heads, parts), float("nan"), device=DEVICE),
        row_tokens=row_tokens.to(DEVICE),
        splits=shared_splits,
    )
    shared_prefix_attention(
        rows.queries,
        rows.keys,
        rows.values,
        rows.paged,
        rule,
        items=items.to(DEVICE),
        num_items=torch.tensor([len(groups)], dtype=torch.int32).to(DEVICE),
        item_rows=SHARED_ITEM_ROWS,
        tile=SharedTile(tokens=16, num_warps=4, num_stages=2, splits=shared_splits, lanes=lanes),
        part=part,
        launch=PLAIN,
    )
    return decode_attention(
        rows.queries,
        rows.keys,
        rows.values,
        rows.paged,
        rule,
        tile=own,
        launch=PLAIN,
        shared=part,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shared_splits", "splits"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize(
    ("heads", "page_size"),
    [((4, 2, 16), 16), ((3, 3, 32), 1), ((8, 1, 48), 8), ((1, 1, 128), 32)],
    ids=str,
)
def test_groups_give_what_their_rows_would_give_alone(
    heads: tuple[int, int, int],
    page_size: int,
    shared_splits: int,
    splits: int,
    dtype: torch.dtype,
) -> None:
    rows = make_rows(LENGTHS, heads, page_size=page_size, dtype=dtype, groups=GROUPS)
    rule = rule_of(rows)
    found = attend(rows, GROUPS, rule, shared_splits=shared_splits, splits=splits)
    torch.testing.assert_close(
        found.float(), rows.expected(rule), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("window", [None, 3, 40, 64])
def test_windows_caps_and_sinks(window: int | None, splits: int) -> None:
    """A window may end before the shared pages, within them, or differently for each row."""
    rows = make_rows(LENGTHS, (4, 2, 16), page_size=16, groups=GROUPS)
    rule = rule_of(rows, window=window, soft_cap=2.0, has_sinks=True, scales=(0.5, 2.0))
    found = attend(rows, GROUPS, rule, shared_splits=2, splits=splits)
    torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def test_query_heads_of_full_items_take_several_blocks() -> None:
    """32 rows of 5 heads are 160 query rows: a tile of 128 and another."""
    lengths = [24 + row for row in range(33)]
    groups = (Group(0, 32, 16),)
    rows = make_rows(lengths, (5, 1, 16), page_size=16, groups=groups)
    rule = rule_of(rows)
    found = attend(rows, groups, rule, shared_splits=1, splits=1, lanes=1)
    torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def test_one_lane_takes_all_items_and_no_items_are_no_work() -> None:
    groups = tuple(Group(2 * number, 2, 16) for number in range(4))
    rows = make_rows([20, 21] * 4, (2, 1, 16), page_size=16, groups=groups)
    rule = rule_of(rows)
    for some in (groups, ()):
        found = attend(rows, some, rule, shared_splits=2, splits=1, lanes=3, spare=4)
        torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def launch_all() -> None:
    """Both phases for the models of the benchmarks, at many rows and at few."""
    for heads in benchmark_models.HEADS:
        for num_rows in (32, 256):
            launch_step(num_rows, heads)


def launch_step(num_rows: int, heads: tuple[int, int, int]) -> None:
    num_heads, num_kv_heads, head_dim = heads
    work = DecodeWork(
        num_rows=num_rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        row_bytes=2 * head_dim,
        max_length=4096,
    )
    whole = torch.int32
    queries = empty(num_rows, num_heads, head_dim)
    pool = empty(64, num_kv_heads, head_dim)
    own, tile = decode_tile(work, has_shared=True), shared_tile(work)
    parts = num_parts(own, tile.splits)
    rows = PagedRows(
        page_table=empty(num_rows + 1, 64, dtype=whole),
        row_slots=empty(num_rows, dtype=torch.int64),
        row_lengths=empty(num_rows, dtype=whole),
        page_size=16,
    )
    rule = ScoreRule(scale=head_dim**-0.5)
    part = SharedPart(
        means=empty(num_rows, num_heads, parts, head_dim),
        log_sums=empty(num_rows, num_heads, parts, dtype=torch.float32),
        row_tokens=empty(num_rows, dtype=whole),
        splits=tile.splits,
    )
    launch = dependent()
    shared_prefix_attention(
        queries,
        pool,
        pool,
        rows,
        rule,
        items=empty(num_rows // 4, 3, dtype=whole),
        num_items=empty(1, dtype=whole),
        item_rows=SHARED_ITEM_ROWS,
        tile=tile,
        part=part,
        launch=launch,
    )
    decode_attention(queries, pool, pool, rows, rule, tile=own, launch=launch, shared=part)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    # Before SM 90 query rows stay in registers, and reading FP8 takes more: there some do not fit.
    most = 64 if capability == 80 else 0
    assert all(record["stack"] <= most for record in records)
