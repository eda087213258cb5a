"""Norms of heads, rotation and KV store equal their meaning: head sizes, splits, dtypes, sink."""

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import HAVE_HEAD_NORMS, qkv_size
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.rotary_store import HeadNormWeights, RotaryTarget, rotary_store
from mizzen_worker.kernels.reference.rotary_store import rotated_heads
from mizzen_worker.layers.rotary import RotaryConfig, rotary_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
CONTEXT = 64
POSITIONS = 96
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: the reference rounds between its steps, the kernel once."""


def check(
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    has_norms: bool = False,
    has_bias: bool = False,
    splits: int = 1,
    dtype: torch.dtype = torch.float32,
    pool_dtype: torch.dtype | None = None,
    replaces_new: bool = False,
    has_scales: bool = False,
) -> None:
    torch.manual_seed(head_dim + heads)
    num_tokens, columns = 5, (heads + 2 * kv_heads) * head_dim
    pool_dtype = pool_dtype or dtype
    parts = torch.randn(splits, num_tokens, columns).to(DEVICE, dtype)
    bias = torch.randn(columns).to(DEVICE) if has_bias else None
    weights = [(torch.rand(head_dim) + 0.5).to(DEVICE, dtype) for _ in range(2)]
    table = rotary_table(RotaryConfig(head_dim=head_dim, theta=10000.0), CONTEXT).to(DEVICE)
    before = torch.randn(2, POSITIONS, kv_heads, head_dim).to(DEVICE, pool_dtype)
    target = RotaryTarget(
        table=table,
        positions=torch.tensor([0, 63, 7, 1, 20], device=DEVICE),
        locations=torch.tensor([95, 0, 17, 33, 16], device=DEVICE),
        keys=before[0].clone(),
        values=before[1].clone(),
    )
    norms = HeadNormWeights(query=weights[0], key=weights[1], eps=1e-6) if has_norms else None
    projected = parts if splits > 1 else parts[0]
    scales = (torch.rand(num_tokens) + 0.5).to(DEVICE) if has_scales else None
    whole = parts.float().sum(0) * (1 if scales is None else scales[:, None])
    whole = whole + (0 if bias is None else bias)
    found = rotary_store(
        projected,
        bias,
        norms,
        target,
        dtype=dtype,
        launch=PLAIN,
        scales=scales,
        replaces_new=replaces_new,
    )

    queries, keys, values = rotated_heads(
        whole,
        (heads, kv_heads),
        (weights[0].float(), weights[1].float(), 1e-6) if has_norms else None,
        table[target.positions],
    )
    expected = before.clone()
    expected[0][target.locations] = keys.to(pool_dtype)
    expected[1][target.locations] = values.to(pool_dtype)
    assert found.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), queries, rtol=tolerance, atol=tolerance)
    tolerance = TOLERANCE[pool_dtype]
    for stored, wanted in zip((target.keys, target.values), expected, strict=True):
        torch.testing.assert_close(stored, wanted, rtol=tolerance, atol=tolerance)
    if replaces_new:
        new = torch.cat([keys, values], dim=1).flatten(1)
        tolerance = TOLERANCE[dtype]
        found_new = projected[:, heads * head_dim :].float()
        torch.testing.assert_close(found_new, new, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(3, 3, 16), (3, 1, 64), (5, 1, 48), (9, 1, 16), (2, 1, 128), (2, 1, 80), (1, 1, 2)],
)
@pytest.mark.parametrize("has_norms", [False, True])
def test_heads_are_rotated_and_stored(
    heads: int, kv_heads: int, head_dim: int, *, has_norms: bool, dtype: torch.dtype
) -> None:
    check(heads, kv_heads, head_dim, has_norms=has_norms, dtype=dtype)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("splits", [2, 4])
def test_partial_products_and_biases_are_added_first(*, has_bias: bool, splits: int) -> None:
    check(4, 2, 32, has_norms=True, has_bias=has_bias, splits=splits)


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("replaces_new", [False, True])
def test_products_are_scaled_by_token(*, has_norms: bool, replaces_new: bool) -> None:
    check(5, 2, 48, has_norms=has_norms, has_bias=True, replaces_new=replaces_new, has_scales=True)
    check(0, 2, 16, has_scales=True)


def test_scales_of_other_tokens_are_refused() -> None:
    empty = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    pool = torch.zeros(4, 1, 16, device=DEVICE)
    table = torch.ones(4, 2, 8, device=DEVICE)
    target = RotaryTarget(table=table, positions=empty, locations=empty, keys=pool, values=pool)
    projected, scales = torch.zeros(2, 48, device=DEVICE), torch.zeros(3, device=DEVICE)
    with pytest.raises(ValueError, match=r"\(3,\) scales are not one of each of 2 tokens"):
        rotary_store(
            projected, None, None, target, dtype=torch.float32, launch=PLAIN, scales=scales
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_new_keys_and_values_take_their_places(*, has_norms: bool, dtype: torch.dtype) -> None:
    check(5, 2, 48, has_norms=has_norms, has_bias=True, dtype=dtype, replaces_new=True)


def test_keys_and_values_come_without_queries() -> None:
    check(0, 3, 16)
    check(0, 2, 48, has_norms=True, has_bias=True)


def test_partial_products_have_no_places_for_new_keys() -> None:
    with pytest.raises(ValueError, match="2 partial products"):
        check(2, 1, 16, splits=2, replaces_new=True)


def test_the_pool_has_a_dtype_of_its_own() -> None:
    check(4, 2, 64, pool_dtype=torch.bfloat16)


def test_tokens_of_the_sink_may_share_a_location() -> None:
    target = RotaryTarget(
        table=torch.ones(4, 2, 8, device=DEVICE),
        positions=torch.zeros(3, dtype=torch.int64, device=DEVICE),
        locations=torch.zeros(3, dtype=torch.int64, device=DEVICE),
        keys=torch.zeros(4, 1, 16, device=DEVICE),
        values=torch.zeros(4, 1, 16, device=DEVICE),
    )
    rotary_store(
        torch.ones(3, 48, device=DEVICE), None, None, target, dtype=torch.float32, launch=PLAIN
    )
    assert torch.equal(target.values[0], torch.ones(1, 16, device=DEVICE))
    assert not target.values[1:].any()


def test_no_tokens_are_no_work() -> None:
    empty = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    pool = torch.zeros(4, 1, 16, device=DEVICE)
    table = torch.ones(4, 2, 8, device=DEVICE)
    target = RotaryTarget(table=table, positions=empty, locations=empty, keys=pool, values=pool)
    none = torch.zeros(0, 48, device=DEVICE)
    found = rotary_store(none, None, None, target, dtype=torch.float32, launch=PLAIN)
    assert found.shape == (0, 1, 16)


def test_a_projection_of_other_heads_is_refused() -> None:
    empty = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    pool = torch.zeros(4, 2, 16, device=DEVICE)
    target = RotaryTarget(
        table=torch.ones(4, 2, 8, device=DEVICE),
        positions=empty,
        locations=empty,
        keys=pool,
        values=pool,
    )
    with pytest.raises(ValueError, match="70 projected columns"):
        rotary_store(
            torch.zeros(1, 70, device=DEVICE), None, None, target, dtype=torch.float32, launch=PLAIN
        )


def launch_all() -> None:
    """A few rows, whole and as partial products, and a chunk with factors of its rows."""
    for shape in benchmark_models.ALL:
        for num_tokens, splits in ((32, 1), (32, 2), (8192, 1)):
            is_chunk = num_tokens > 32
            norm, index = empty(shape.head_dim), empty(num_tokens, dtype=torch.int64)
            pool = empty(4096, shape.num_kv_heads, shape.head_dim)
            table = empty(4096, 2, shape.head_dim // 2, dtype=torch.float32)
            projected = empty(num_tokens, qkv_size(shape))
            if splits > 1:
                projected = empty(splits, *projected.shape, dtype=torch.float32)
            rotary_store(
                projected,
                None,
                HeadNormWeights(query=norm, key=norm, eps=1e-6)
                if shape in HAVE_HEAD_NORMS
                else None,
                RotaryTarget(table=table, positions=index, locations=index, keys=pool, values=pool),
                dtype=torch.bfloat16,
                launch=dependent(),
                scales=empty(num_tokens, dtype=torch.float32) if is_chunk else None,
                replaces_new=is_chunk,
            )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
