"""Decode attention equals its meaning: heads, pages, lengths, splits, windows, caps, sinks."""

import pytest
import torch
from tests import benchmark_models
from tests.scale import slow_case
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty
from tests.worker.kernels.gpu.paged_rows import DEVICE, DTYPES, TOLERANCE, make_rows, rule_of

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import DecodeTile, decode_attention
from mizzen_worker.kernels.gpu.launching import PLAIN, compute_capability, dependent

LENGTHS = [1, 37, 0, 16, 33, 70]


def tile(splits: int = 1, *, tokens: int = 16, is_ahead: bool = False) -> DecodeTile:
    return DecodeTile(tokens=tokens, num_warps=2, num_stages=2, is_ahead=is_ahead, splits=splits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("heads", "page_size"),
    [
        ((4, 2, 16), 16),
        ((3, 3, 32), 1),
        ((9, 1, 48), 3),
        ((20, 1, 16), 64),
        ((8, 1, 80), 7),
        ((70, 1, 16), 5),
        ((4, 1, 128), 16),
    ],
    ids=str,
)
def test_rows_attend_over_their_pages(
    heads: tuple[int, int, int], page_size: int, splits: int, dtype: torch.dtype
) -> None:
    rows = make_rows(LENGTHS, heads, page_size=page_size, dtype=dtype)
    rule = rule_of(rows)
    found = decode_attention(
        rows.queries, rows.keys, rows.values, rows.paged, rule, tile=tile(splits), launch=PLAIN
    )
    assert found.dtype == dtype
    assert not found[2].any(), "a row without positions gives zeros"
    torch.testing.assert_close(
        found.float(), rows.expected(rule), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize(
    ("splits", "is_ahead"), [(1, False), (2, True), slow_case(*(1, True)), slow_case(*(2, False))]
)
@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize(("soft_cap", "has_sinks"), [(0.0, False), (2.5, False), (1.0, True)])
def test_windows_caps_and_sinks(
    window: int | None, soft_cap: float, *, has_sinks: bool, splits: int, is_ahead: bool
) -> None:
    rows = make_rows([1, 20, 21, 0, 50], (6, 2, 16), page_size=4)
    rule = rule_of(rows, window=window, soft_cap=soft_cap, has_sinks=has_sinks)
    found = decode_attention(
        rows.queries,
        rows.keys,
        rows.values,
        rows.paged,
        rule,
        tile=tile(splits, is_ahead=is_ahead),
        launch=PLAIN,
    )
    torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("tokens", [16, 32, 128])
def test_more_splits_than_positions(tokens: int) -> None:
    rows = make_rows([1, 40, 129], (4, 2, 16), page_size=16)
    rule = rule_of(rows)
    found = decode_attention(
        rows.queries,
        rows.keys,
        rows.values,
        rows.paged,
        rule,
        tile=tile(9, tokens=tokens, is_ahead=True),
        launch=PLAIN,
    )
    torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def test_the_pool_has_a_dtype_and_scales_of_its_own() -> None:
    rows = make_rows([5, 40], (4, 2, 16), page_size=8, pool_dtype=torch.bfloat16)
    rule = rule_of(rows, scales=(0.5, 3.0))
    for splits in (1, 2):
        found = decode_attention(
            rows.queries, rows.keys, rows.values, rows.paged, rule, tile=tile(splits), launch=PLAIN
        )
        torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def test_queries_may_lie_in_a_wider_projection() -> None:
    rows = make_rows([5, 40], (4, 2, 16), page_size=8)
    wide = torch.full((2, 96), float("nan"), device=DEVICE)
    wide[:, :64] = rows.queries.flatten(1)
    rule = rule_of(rows)
    queries = wide[:, :64].view(2, 4, 16)
    found = decode_attention(
        queries, rows.keys, rows.values, rows.paged, rule, tile=tile(), launch=PLAIN
    )
    torch.testing.assert_close(found, rows.expected(rule), rtol=2e-5, atol=2e-5)


def test_what_does_not_fit_is_refused() -> None:
    rows = make_rows([5, 40], (4, 2, 16), page_size=8)
    rule = rule_of(rows)
    with pytest.raises(ValueError, match="3 query heads of 16"):
        decode_attention(
            rows.queries[:, :3],
            rows.keys,
            rows.values,
            rows.paged,
            rule,
            tile=tile(),
            launch=PLAIN,
        )
    with pytest.raises(ValueError, match="1 queries for 2 slots"):
        decode_attention(
            rows.queries[:1], rows.keys, rows.values, rows.paged, rule, tile=tile(), launch=PLAIN
        )


def launch_all() -> None:
    """Every tile that the models of the benchmarks launch."""
    for heads in benchmark_models.HEADS:
        for num_rows in (1, 8, 32, 256):
            launch_step(num_rows, heads)
    for heads in ((8, 2, 256), (32, 8, 80)):
        for num_rows in (8, 256):
            launch_step(num_rows, heads)
    if compute_capability() >= 89:
        for num_rows in (32, 256):
            launch_step(num_rows, benchmark_models.HEADS[0], torch.float8_e4m3fn)


def launch_step(
    num_rows: int, heads: tuple[int, int, int], pool_dtype: torch.dtype = torch.bfloat16
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    work = DecodeWork(
        num_rows=num_rows,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        row_bytes=2 * head_dim,
        max_length=1024,
    )
    pool = empty(64, num_kv_heads, head_dim, dtype=pool_dtype)
    decode_attention(
        empty(num_rows, num_heads, head_dim),
        pool,
        pool,
        PagedRows(
            page_table=empty(num_rows + 1, 64, dtype=torch.int32),
            row_slots=empty(num_rows, dtype=torch.int64),
            row_lengths=empty(num_rows, dtype=torch.int32),
            page_size=16,
        ),
        ScoreRule(scale=head_dim**-0.5),
        tile=decode_tile(work),
        launch=dependent(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
