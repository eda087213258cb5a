"""Kernels over an FP8 pool equal those over what it holds; writing scales, rounds and saturates."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import HAVE_HEAD_NORMS
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty
from tests.worker.kernels.gpu.exact_fp8 import exact_fp8  # noqa: F401  (a fixture)
from tests.worker.kernels.gpu.noted_extend import launch_extend

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile, shared_tile
from mizzen_worker.kernels.fp8_matrix import FP8, LARGEST
from mizzen_worker.kernels.gpu.attention_tile import PagedRows, ScoreRule
from mizzen_worker.kernels.gpu.decode_attention import (
    DecodeTile,
    SharedPart,
    decode_attention,
    num_parts,
)
from mizzen_worker.kernels.gpu.extend_attention import extend_attention
from mizzen_worker.kernels.gpu.extend_plan import (
    ExtendRows,
    HeadShape,
    choose_tile,
    plan_extend,
)
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent, num_multiprocessors
from mizzen_worker.kernels.gpu.rotary_store import RotaryTarget, rotary_store
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, shared_prefix_attention
from mizzen_worker.kernels.gpu.single_row_attention import RowKv, SplitTile, single_row_attention
from mizzen_worker.layers.gpu.gemv_tiles import split_tile
from mizzen_worker.layers.rotary import RotaryConfig, rotary_table
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS
from mizzen_worker.models.model_facts import ModelShape

pytestmark = pytest.mark.usefixtures("exact_fp8")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
TOLERANCE = 2e-2 if DTYPE is torch.bfloat16 else 2e-5
KEY_SCALE, VALUE_SCALE = 0.5, 0.0625
RULE = ScoreRule(scale=0.25)
SCALED = dataclasses.replace(RULE, key_scale=KEY_SCALE, value_scale=VALUE_SCALE)


def pool_of(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of FP8."""
    torch.manual_seed(sum(shape))
    both = torch.randn(2, *shape).div_(torch.tensor([KEY_SCALE, VALUE_SCALE]).view(2, 1, 1, 1))
    keys, values = both.clamp_(-LARGEST, LARGEST).to(FP8).to(DEVICE)
    return keys, values


def meant(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What such a pool holds."""
    return (keys.float() * KEY_SCALE).to(DTYPE), (values.float() * VALUE_SCALE).to(DTYPE)


def exact_in_fp8(*shape: int) -> torch.Tensor:
    """Random numbers of the type, float32."""
    torch.manual_seed(1)
    return (torch.randn(shape) * 8).to(FP8).float().to(DEVICE)


def stored_by(projected: torch.Tensor, pool_dtype: torch.dtype, *scales: float) -> RotaryTarget:
    """A pool that got keys and values of tokens whose rotation does nothing."""
    num_tokens = len(projected)
    target = RotaryTarget(
        table=rotary_table(RotaryConfig(head_dim=16, theta=100.0), 16).to(DEVICE),
        positions=torch.zeros(num_tokens, dtype=torch.int64, device=DEVICE),
        locations=torch.arange(1, num_tokens + 1, device=DEVICE) * 3,
        keys=torch.zeros(32, 2, 16, device=DEVICE).to(pool_dtype),
        values=torch.zeros(32, 2, 16, device=DEVICE).to(pool_dtype),
        key_scale=scales[0],
        value_scale=scales[1],
    )
    queries = rotary_store(projected, None, None, target, dtype=torch.float32, launch=PLAIN)
    torch.testing.assert_close(queries.flatten(1), projected[:, :32])
    return target


def test_storing_divides_and_saturates() -> None:
    projected = exact_in_fp8(3, 6 * 16)
    projected[1, 70], projected[2, 80] = 1e9, -1e9
    target = stored_by(projected, FP8, KEY_SCALE, VALUE_SCALE)
    exact = stored_by(projected, torch.float32, 1.0, 1.0)
    for found, wanted, scale in (
        (target.keys, exact.keys, KEY_SCALE),
        (target.values, exact.values, VALUE_SCALE),
    ):
        assert torch.equal(found.float(), (wanted / scale).clamp(-LARGEST, LARGEST))
    assert target.values.float().abs().max() == LARGEST


def test_storing_rounds_to_even_and_keeps_nan() -> None:
    torch.manual_seed(2)
    projected = torch.randn(3, 6 * 16, device=DEVICE) * 30
    projected[1, 70] = float("nan")
    target = stored_by(projected, FP8, KEY_SCALE, VALUE_SCALE)
    exact = stored_by(projected, torch.float32, 1.0, 1.0)
    for found, wanted, scale in (
        (target.keys, exact.keys, KEY_SCALE),
        (target.values, exact.values, VALUE_SCALE),
    ):
        rounded = (wanted / scale).clamp(-LARGEST, LARGEST).to(FP8).float()
        torch.testing.assert_close(found.float(), rounded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [1, 3, 40])
def test_one_row(length: int) -> None:
    heads, kv_heads, head_dim, page_size = 4, 2, 32, 4
    keys, values = pool_of(64, kv_heads, head_dim)
    table = (torch.randperm(15, device=DEVICE)[:12].int() + 1).view(1, 12)
    last = length - 1
    location = table[0, last // page_size].long() * page_size + last % page_size
    projected = exact_in_fp8(heads + 2 * kv_heads, head_dim)
    projected[: heads + kv_heads] *= KEY_SCALE
    projected[heads + kv_heads :] *= VALUE_SCALE
    projected = projected.to(DTYPE)
    found, expected = torch.empty(2, heads * head_dim, dtype=DTYPE, device=DEVICE)

    def attend(keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, *scales: float) -> None:
        single_row_attention(
            projected,
            None,
            RowKv(
                keys=keys,
                values=values,
                page_table=table,
                slot=torch.zeros(1, dtype=torch.int64, device=DEVICE),
                location=location.view(1),
                length=torch.tensor([length], dtype=torch.int32, device=DEVICE),
                page_size=page_size,
                key_scale=scales[0],
                value_scale=scales[1],
            ),
            out,
            window=None,
            eps=1e-6,
            tile=SplitTile(splits=4, tokens=16, warps=4),
            launch=PLAIN,
        )

    attend(keys, values, found, KEY_SCALE, VALUE_SCALE)
    held_keys, held_values = meant(keys, values)
    own = projected[heads:].view(2, kv_heads, head_dim)
    assert torch.equal(torch.stack([held_keys[location], held_values[location]]), own)
    attend(held_keys, held_values, expected, 1.0, 1.0)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def paged_rows(page_size: int) -> PagedRows:
    table = (torch.randperm(20)[:16].int() + 1).view(2, 8)
    return PagedRows(
        page_table=table.to(DEVICE),
        row_slots=torch.tensor([1, 0], device=DEVICE),
        row_lengths=torch.tensor([29, 7], dtype=torch.int32, device=DEVICE),
        page_size=page_size,
    )


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, ScoreRule], torch.Tensor]


def require_equal(attend: Attend, num_tokens: int) -> None:
    keys, values = pool_of(96, 2, 16)
    queries = torch.randn(num_tokens, 4, 16).to(DEVICE, DTYPE)
    found = attend(queries, keys, values, SCALED)
    expected = attend(queries, *meant(keys, values), RULE)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_decode_rows(splits: int, *, is_ahead: bool) -> None:
    tile = DecodeTile(tokens=16, num_warps=4, num_stages=2, is_ahead=is_ahead, splits=splits)
    rows = paged_rows(4)
    require_equal(
        lambda queries, keys, values, rule: decode_attention(
            queries, keys, values, rows, rule, tile=tile, launch=PLAIN
        ),
        2,
    )


def test_shared_prefixes() -> None:
    rows = dataclasses.replace(paged_rows(4), row_slots=torch.tensor([1, 1], device=DEVICE))
    own = DecodeTile(tokens=16, num_warps=4, num_stages=2, is_ahead=False, splits=1)
    tile = SharedTile(tokens=16, num_warps=4, num_stages=2, splits=2, lanes=1)

    def attend(
        queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: ScoreRule
    ) -> torch.Tensor:
        parts = num_parts(own, 2)
        part = SharedPart(
            means=queries.new_empty(2, 4, parts, 16),
            log_sums=queries.new_empty(2, 4, parts, dtype=torch.float32),
            row_tokens=torch.full((2,), 4, dtype=torch.int32, device=DEVICE),
            splits=2,
        )
        shared_prefix_attention(
            queries,
            keys,
            values,
            rows,
            rule,
            items=torch.tensor([[0, 2, 4]], dtype=torch.int32, device=DEVICE),
            num_items=torch.ones(1, dtype=torch.int32, device=DEVICE),
            item_rows=2,
            tile=tile,
            part=part,
            launch=PLAIN,
        )
        return decode_attention(
            queries, keys, values, rows, rule, tile=own, launch=PLAIN, shared=part
        )

    require_equal(attend, 2)


@pytest.mark.parametrize("page_size", [4, 64])
@pytest.mark.parametrize("head_dim", [16])
def test_new_tokens(page_size: int, head_dim: int) -> None:
    heads = HeadShape(num_heads=4, num_kv_heads=2, head_dim=head_dim)
    rows = ExtendRows(
        page_table=paged_rows(4).page_table
        if page_size == 4
        else torch.ones(2, 1, dtype=torch.int32, device=DEVICE),
        row_slots=torch.tensor([1, 0], device=DEVICE),
        row_starts=torch.tensor([0, 5, 9], dtype=torch.int32, device=DEVICE),
        row_lengths=torch.tensor([29, 4], dtype=torch.int32, device=DEVICE),
        page_size=page_size,
    )
    plan = plan_extend(rows, heads, 9, choose_tile(heads, DTYPE, 232_448))
    keys, values = pool_of(128, 2, head_dim)
    queries = torch.randn(9, 4, head_dim).to(DEVICE, DTYPE)
    found = extend_attention(queries, keys, values, plan, SCALED)
    expected = extend_attention(queries, *meant(keys, values), plan, RULE)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_scales_are_for_fp8_alone() -> None:
    where = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    pool = torch.zeros(4, 1, 16, device=DEVICE)
    target = RotaryTarget(
        table=torch.ones(4, 2, 8, device=DEVICE),
        positions=where,
        locations=where,
        keys=pool,
        values=pool,
        key_scale=2.0,
    )
    with pytest.raises(ValueError, match="has no scales"):
        rotary_store(
            torch.zeros(1, 48, device=DEVICE), None, None, target, dtype=torch.float32, launch=PLAIN
        )
    target = dataclasses.replace(target, key_scale=0.0)
    with pytest.raises(ValueError, match="above 0"):
        rotary_store(
            torch.zeros(1, 48, device=DEVICE), None, None, target, dtype=torch.float32, launch=PLAIN
        )


def launch_all() -> None:
    """Llama-3.1-8B and Qwen3-0.6B: what a decode step, a chunk and one token launch."""
    launch = dependent()
    ids, counts = {"dtype": torch.int64}, {"dtype": torch.int32}
    for shape in benchmark_models.DENSE:
        pool = empty(4096, shape.num_kv_heads, shape.head_dim, dtype=FP8)
        num_all = shape.num_heads + 2 * shape.num_kv_heads
        rotary_store(
            empty(32, num_all * shape.head_dim),
            None,
            None,
            RotaryTarget(
                table=empty(4096, 2, shape.head_dim // 2, dtype=torch.float32),
                positions=empty(32, **ids),
                locations=empty(32, **ids),
                keys=pool,
                values=pool,
                key_scale=0.5,
            ),
            dtype=torch.bfloat16,
            launch=launch,
        )
        single_row_attention(
            empty(num_all, shape.head_dim),
            empty(num_all, 8, dtype=torch.float32) if shape in HAVE_HEAD_NORMS else None,
            RowKv(
                keys=pool,
                values=pool,
                page_table=empty(257, 2560, **counts),
                slot=empty(1, **ids),
                location=empty(1, **ids),
                length=empty(1, **counts),
                page_size=64,
            ),
            empty(shape.num_heads * shape.head_dim),
            window=None,
            eps=1e-6,
            tile=split_tile(shape.num_kv_heads, shape.head_dim, num_multiprocessors()),
            launch=launch,
        )
        for num_rows in (8, 32, 256):
            launch_decode(num_rows, shape)
    num_heads, num_kv_heads, head_dim = benchmark_models.HEADS[0]
    heads = HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    for page_size in (16, 64):
        launch_extend(heads, SCALED, page_size=page_size, pool_dtype=FP8)


def launch_decode(num_rows: int, shape: ModelShape) -> None:
    """Rows of 1,024 positions, and prefixes that they share."""
    num_heads, head_dim = shape.num_heads, shape.head_dim
    work = DecodeWork(
        num_rows=num_rows,
        num_heads=num_heads,
        num_kv_heads=shape.num_kv_heads,
        row_bytes=2 * head_dim,
        max_length=1024,
    )
    rows = PagedRows(
        page_table=empty(257, 64, dtype=torch.int32),
        row_slots=empty(num_rows, dtype=torch.int64),
        row_lengths=empty(num_rows, dtype=torch.int32),
        page_size=64,
    )
    queries = empty(num_rows, num_heads, head_dim)
    pool = empty(4096, shape.num_kv_heads, head_dim, dtype=FP8)
    own, tile = decode_tile(work, has_shared=True), shared_tile(work)
    parts = num_parts(own, tile.splits)
    part = SharedPart(
        means=empty(num_rows, num_heads, parts, head_dim),
        log_sums=empty(num_rows, num_heads, parts, dtype=torch.float32),
        row_tokens=empty(num_rows, dtype=torch.int32),
        splits=tile.splits,
    )
    decode_attention(queries, pool, pool, rows, SCALED, tile=decode_tile(work), launch=dependent())
    shared_prefix_attention(
        queries,
        pool,
        pool,
        rows,
        SCALED,
        items=empty(8, 3, dtype=torch.int32),
        num_items=empty(1, dtype=torch.int32),
        item_rows=SHARED_ITEM_ROWS,
        tile=tile,
        part=part,
        launch=dependent(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [89, 90])
def test_compiles_without_spilling(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        # SM 89 may spill a few bytes, as the kernel of new tokens does without FP8.
        assert record["stack"] <= (0 if capability == 90 else 64), record
