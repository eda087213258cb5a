"""Attention of one token equals its meaning: lengths, windows, head sizes, pages, the sink."""

import dataclasses

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import HAVE_HEAD_NORMS
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.single_row_attention import (
    RowKv,
    SplitTile,
    single_row_attention,
)
from mizzen_worker.kernels.reference.paged_attention import attend_one
from mizzen_worker.layers.gpu.gemv_tiles import split_tile

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
EPS = 1e-6
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: probabilities and results are rounded."""
SLOTS, SLOT = 3, 2


class Case:
    """A pool with one row in it, whose last position's key and value are not there yet."""

    def __init__(
        self,
        heads: tuple[int, int],
        head_dim: int,
        length: int,
        *,
        page_size: int,
        has_norms: bool,
        dtype: torch.dtype,
    ) -> None:
        torch.manual_seed(length + head_dim)
        self.num_heads, self.num_kv_heads = heads
        self.length, self.has_norms = length, has_norms
        num_pages = -(-max(length, 1) // page_size) + 1
        num_positions = (num_pages + 2) * page_size
        self.before = torch.randn(2, num_positions, self.num_kv_heads, head_dim)
        self.before = self.before.to(DEVICE, dtype)
        table = torch.full((SLOTS, num_pages), 10**6, dtype=torch.int32)  # other rows: nowhere
        table[SLOT] = torch.randperm(num_pages + 1)[:num_pages].int() + 1
        pages = table[SLOT, torch.arange(max(length, 1)) // page_size].long()
        self.locations = pages * page_size + torch.arange(max(length, 1)) % page_size
        location = self.locations[-1:].clone() if length > 1 else torch.zeros(1, dtype=torch.int64)
        self.kv = RowKv(
            keys=self.before[0].clone(),
            values=self.before[1].clone(),
            page_table=table.to(DEVICE),
            slot=torch.tensor([SLOT], device=DEVICE),
            location=location.to(DEVICE),
            length=torch.tensor([length], dtype=torch.int32, device=DEVICE),
            page_size=page_size,
        )
        # The token's own position holds what must not be read.
        self.kv.keys[self.kv.location] = 1e4
        self.kv.values[self.kv.location] = 1e4
        num_all = self.num_heads + 2 * self.num_kv_heads
        self.projected = torch.randn(num_all, head_dim).to(DEVICE, dtype)
        self.squares = torch.rand(num_all, 3, device=DEVICE) * head_dim if has_norms else None

    def factors(self) -> torch.Tensor:
        """What finishes the norms of heads."""
        num_all, head_dim = self.projected.shape
        if self.squares is None:
            return torch.ones(num_all, 1, device=DEVICE)
        return torch.rsqrt(self.squares.sum(1, keepdim=True) / head_dim + EPS)

    def expected(self, window: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attention, and the token's key and value."""
        finished = self.projected.float() * self.factors()
        queries = finished[: self.num_heads]
        key = finished[self.num_heads : self.num_heads + self.num_kv_heads]
        value = self.projected[self.num_heads + self.num_kv_heads :]
        seen = self.locations[: max(self.length, 1) - 1].to(DEVICE)
        if window is not None and window <= len(seen):
            seen = seen[len(seen) + 1 - window :]
        dtype = self.projected.dtype
        keys = torch.cat([self.before[0][seen], key[None].to(dtype)])
        values = torch.cat([self.before[1][seen], value[None]])
        return attend_one(queries, keys, values).flatten(), key, value

    def check(self, tile: SplitTile, window: int | None) -> None:
        head_dim = self.projected.shape[1]
        dtype = self.projected.dtype
        output = torch.full((self.num_heads * head_dim,), float("nan"), device=DEVICE, dtype=dtype)
        single_row_attention(
            self.projected,
            self.squares,
            self.kv,
            output,
            window=window,
            eps=EPS,
            tile=tile,
            launch=PLAIN,
        )
        attended, key, value = self.expected(window)
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(output.float(), attended, rtol=tolerance, atol=tolerance)
        stored_key = self.kv.keys[self.kv.location][0].float()
        torch.testing.assert_close(stored_key, key, rtol=tolerance, atol=tolerance)
        stored_value = self.kv.values[self.kv.location][0]
        torch.testing.assert_close(stored_value, value, rtol=0, atol=0)
        for pool, before in ((self.kv.keys, self.before[0]), (self.kv.values, self.before[1])):
            others = torch.ones(len(pool), dtype=torch.bool, device=DEVICE)
            others[self.kv.location] = False
            torch.testing.assert_close(pool[others], before[others], rtol=0, atol=0)


def small(splits: int = 4, tokens: int = 16) -> SplitTile:
    return SplitTile(splits=splits, tokens=tokens, warps=4, merge_columns=32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "head_dim", "page_size"),
    [((3, 3), 16, 1), ((6, 2), 32, 16), ((20, 1), 48, 3), ((4, 2), 64, 7), ((2, 1), 128, 64)],
)
@pytest.mark.parametrize("has_norms", [False, True])
def test_shapes(
    heads: tuple[int, int], head_dim: int, page_size: int, *, has_norms: bool, dtype: torch.dtype
) -> None:
    case = Case(heads, head_dim, 41, page_size=page_size, has_norms=has_norms, dtype=dtype)
    case.check(small(), None)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 48, 49, 50, 150])
@pytest.mark.parametrize("window", [None, 1, 2, 40, 1000])
def test_lengths_and_windows(length: int, window: int | None) -> None:
    """More splits than positions, whole tiles, several tiles a split."""
    case = Case((2, 1), 16, length, page_size=4, has_norms=False, dtype=torch.float32)
    case.check(small(), window)


@pytest.mark.parametrize("splits", [2, 7, 8])
def test_splits(splits: int) -> None:
    case = Case((2, 2), 16, 100, page_size=16, has_norms=True, dtype=torch.float32)
    case.check(small(splits), None)
    case.check(small(splits, tokens=32), 60)


def test_sink_takes_the_token_of_a_masked_row() -> None:
    case = Case((2, 1), 16, 1, page_size=4, has_norms=False, dtype=torch.float32)
    assert int(case.kv.location) == 0
    case.check(small(), None)


def test_wrong_operands_are_refused() -> None:
    case = Case((2, 1), 16, 5, page_size=4, has_norms=False, dtype=torch.float32)
    with pytest.raises(ValueError, match="at least 2 splits"):
        case.check(small(splits=1), None)
    case.kv = dataclasses.replace(case.kv, values=case.kv.values.to(torch.float16))
    with pytest.raises(ValueError, match=r"keys of torch.float32 and values of torch.float16"):
        case.check(small(), None)


def launch_all() -> None:
    """The models that we measure, and sizes of heads that need masks."""

    launch = dependent()
    shapes = [
        (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape in HAVE_HEAD_NORMS)
        for shape in benchmark_models.ALL
    ]
    for heads, kv_heads, head_dim, has_norms in [
        *shapes,
        (14, 2, 64, False),
        (8, 8, 80, False),
    ]:
        num_all = heads + 2 * kv_heads
        kv = RowKv(
            keys=empty(4096, kv_heads, head_dim),
            values=empty(4096, kv_heads, head_dim),
            page_table=empty(257, 2560, dtype=torch.int32),
            slot=empty(1, dtype=torch.int64),
            location=empty(1, dtype=torch.int64),
            length=empty(1, dtype=torch.int32),
            page_size=16,
        )
        single_row_attention(
            empty(num_all, head_dim),
            empty(num_all, 8, dtype=torch.float32) if has_norms else None,
            kv,
            empty(heads * head_dim),
            window=None,
            eps=EPS,
            tile=split_tile(kv_heads, head_dim, 132),
            launch=launch,
        )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [90, 89, 80])
def test_compiles_without_spilling(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] == 0, record
