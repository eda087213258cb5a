"""The Triton backend equals the reference: mixed batches, windows, shared prefixes, host bounds."""

import dataclasses

import numpy as np
import pytest
import torch

from mizzen_worker.attention.decode_tiles import DecodeWork, decode_tile, shared_tile
from mizzen_worker.attention.torch_reference import TorchReferenceAttention
from mizzen_worker.attention.triton_attention import AttentionRule, TritonAttention
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch, SharedPrefixes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE_SIZE = 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
SHARED_PAGES = 5


def pool_of(num_pages: int) -> DevicePool:
    shape = PoolShape(
        num_layers=2,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
    )
    pool = DevicePool(shape, torch.float32, DEVICE)
    generator = torch.Generator().manual_seed(3)
    for layer in range(2):
        for tensor in (pool.keys(layer), pool.values(layer)):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


def batch_of(rows: list[tuple[int, int]], shared: tuple[int, int] | None = None) -> ForwardBatch:
    """``rows``: (positions before, new tokens). ``shared``: rows [first, end) share first pages."""
    counts = np.array([count for _, count in rows], dtype=np.int32)
    row_starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    lengths = np.array([start + count for start, count in rows], dtype=np.int32)
    needed = -(-lengths // PAGE_SIZE)
    table = torch.zeros(len(rows) + 1, int(needed.max()) + 1, dtype=torch.int32)
    pages = torch.randperm(int(needed.sum()), generator=torch.Generator().manual_seed(1)) + 1
    ends = needed.cumsum().tolist()
    for row, count in enumerate(needed.tolist()):
        table[row + 1, :count] = pages[ends[row] - count : ends[row]]
    prefixes = None
    if shared is not None:
        first, end = shared
        table[first + 1 : end + 1, :SHARED_PAGES] = table[first + 1, :SHARED_PAGES]
        first_decode = next(row for row, (_, count) in enumerate(rows) if count == 1)
        tokens = torch.zeros(len(rows) - first_decode, dtype=torch.int32)
        tokens[first - first_decode : end - first_decode] = SHARED_PAGES * PAGE_SIZE
        item = [first - first_decode, end - first, SHARED_PAGES * PAGE_SIZE]
        prefixes = SharedPrefixes(
            first_row=first_decode,
            num_items=torch.tensor([1], dtype=torch.int32, device=DEVICE),
            items=torch.tensor([item, [0, 0, 0]], dtype=torch.int32, device=DEVICE),
            row_tokens=tokens.to(DEVICE),
        )
    positions = torch.cat([torch.arange(start, start + count) for start, count in rows])
    return ForwardBatch(
        token_ids=torch.zeros(len(positions), dtype=torch.int64, device=DEVICE),
        positions=positions.to(DEVICE),
        kv_locations=torch.zeros(len(positions), dtype=torch.int64, device=DEVICE),
        page_table=table.to(DEVICE),
        row_slots=torch.arange(1, len(rows) + 1, device=DEVICE),
        sampled_tokens=torch.zeros(0, dtype=torch.int64, device=DEVICE),
        device_row_starts=torch.from_numpy(row_starts).to(DEVICE),
        device_row_lengths=torch.from_numpy(lengths).to(DEVICE),
        row_starts=row_starts,
        row_lengths=lengths,
        page_size=PAGE_SIZE,
        shared_prefixes=prefixes,
    )


def queries_of(batch: ForwardBatch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch.num_tokens, HEADS, HEAD_DIM, generator=generator).to(DEVICE)


def require_equal(batch: ForwardBatch, given: ForwardBatch | None = None) -> None:
    """``given``: as the backend under test gets the batch."""
    pool = pool_of(200)
    queries = queries_of(batch)
    reference = TorchReferenceAttention(pool)
    expected, found = (
        reference.begin(batch),
        TritonAttention(pool, reference).begin(given or batch, is_dependent=True),
    )
    for layer, window in ((0, None), (1, None), (0, 3), (1, 22)):
        torch.testing.assert_close(
            found.attend(layer, queries, window),
            expected.attend(layer, queries, window),
            rtol=2e-5,
            atol=2e-5,
        )


@pytest.mark.parametrize(
    "rows",
    [
        [(5, 1)],
        [(0, 1), (40, 1), (7, 1)],
        [(0, 7)],
        [(0, 5), (30, 6), (40, 1), (7, 1), (64, 1)],
        [(33, 1), (0, 9), (50, 1)],
    ],
    ids=str,
)
def test_batches_of_every_kind(rows: list[tuple[int, int]]) -> None:
    require_equal(batch_of(rows))


@pytest.mark.parametrize("num_extends", [0, 2])
def test_rows_that_share_pages(num_extends: int) -> None:
    extends = [(0, 5), (8, 3)][:num_extends]
    rows = [*extends, (20, 1), (41, 1), (27, 1), (60, 1), (3, 1)]
    require_equal(batch_of(rows, (num_extends + 1, num_extends + 4)))


def test_an_extend_of_one_token_before_shared_rows() -> None:
    """It is none of the decode rows, from which the shared ones are counted."""
    batch = batch_of([(0, 5), (9, 2), (30, 1), (30, 1), (41, 1)], (2, 5))
    counts = np.array([5, 1, 1, 1, 1], dtype=np.int32)
    starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    tokens = torch.tensor([0, 1, 2, 3, 4, 6, 7, 8, 9], device=DEVICE)
    shorter = dataclasses.replace(
        batch,
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        kv_locations=batch.kv_locations[tokens],
        row_starts=starts,
        device_row_starts=torch.from_numpy(starts).to(DEVICE),
    )
    require_equal(shorter)


def test_grids_of_bounds_take_real_lengths_from_the_device() -> None:
    rows = [(0, 1), (40, 1), (7, 1)]
    batch = batch_of(rows)
    bounds = np.full(3, 4096, dtype=np.int32)
    require_equal(batch, dataclasses.replace(batch, row_lengths=bounds))


def test_caps_and_sinks_are_the_models() -> None:
    pool, batch = pool_of(60), batch_of([(20, 1), (33, 1)])
    queries = queries_of(batch)
    sinks = torch.tensor([9.0, -9.0, 0.0, 0.0], device=DEVICE)
    none = TritonAttention(pool, TorchReferenceAttention(pool), AttentionRule())
    some = TritonAttention(
        pool,
        TorchReferenceAttention(pool),
        AttentionRule(soft_cap=50.0, sinks=(sinks, sinks)),
    )
    plain = none.begin(batch).attend(0, queries, None).view(2, HEADS, HEAD_DIM)
    found = some.begin(batch).attend(0, queries, None).view(2, HEADS, HEAD_DIM)
    assert float(found[:, 0].norm()) < 0.1 * float(plain[:, 0].norm())
    torch.testing.assert_close(found[:, 1], plain[:, 1], rtol=2e-2, atol=2e-2)


def work(num_rows: int, **changed: int) -> DecodeWork:
    llama = {"num_heads": 32, "num_kv_heads": 8, "row_bytes": 256, "max_length": 1150}
    return DecodeWork(num_rows=num_rows, **(llama | changed))


@pytest.mark.parametrize(
    ("case", "splits", "tokens"),
    [
        (work(256), 1, 64),
        (work(96), 1, 64),
        (work(64), 2, 64),
        (work(48), 2, 64),
        (work(32), 2, 64),
        (work(24), 3, 64),
        (work(8), 8, 64),
        (work(1), 16, 64),
        (work(1, max_length=100_000), 16, 64),
        (work(1, max_length=20), 1, 64),
        (work(256, row_bytes=512), 1, 32),
        (work(256, row_bytes=64), 1, 64),
    ],
    ids=str,
)
def test_splits_keep_all_multiprocessors_reading(
    case: DecodeWork, splits: int, tokens: int
) -> None:
    found = decode_tile(case)
    assert (found.splits, found.tokens) == (splits, tokens)


@pytest.mark.parametrize(
    ("case", "splits"), [(work(256), 2), (work(128), 4), (work(32), 8), (work(1024), 1)], ids=str
)
def test_shared_prefixes_are_split_less_the_more_rows_there_are(
    case: DecodeWork, splits: int
) -> None:
    found = shared_tile(case)
    assert found.splits == splits
    assert found.lanes >= 1
    assert decode_tile(case, has_shared=True).splits == 1
