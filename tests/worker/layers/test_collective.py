"""What ranks exchange, over gloo and loopback: three ranks, each in a thread of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.worker.model_executor.rank_group import process_group

from mizzen_worker.layers.collective import (
    Collective,
    NcclCollective,
    ProcessGroupCollective,
)
from mizzen_worker.layers.ranks import LONE_RANK, JoinedRanks

SIZE = 3
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])


def on_ranks(folder: Path, work: Callable[[Collective], torch.Tensor]) -> list[torch.Tensor]:
    def run(rank: int) -> torch.Tensor:
        store = dist.FileStore(str(folder / "store"), SIZE)
        collective = ProcessGroupCollective(process_group(rank, SIZE, store))
        assert (collective.rank, collective.size) == (rank, SIZE)
        with torch.inference_mode():
            return work(collective)

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(run, range(SIZE)))


def values_of(rank: int, dtype: torch.dtype, rows: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(rows, 7, generator=generator) * 100).to(dtype)


@DTYPES
def test_sums_are_those_of_the_order_of_ranks_on_all_of_them(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def work(collective: Collective) -> torch.Tensor:
        values = values_of(collective.rank, dtype)
        collective.sum_over_ranks(values)
        return values

    first, second, third = (values_of(rank, dtype) for rank in range(SIZE))
    for found in on_ranks(tmp_path, work):
        assert torch.equal(found, first + second + third)


def test_a_rows_sum_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    def work(collective: Collective) -> torch.Tensor:
        values = values_of(collective.rank, torch.float32, 200)
        one = values[117:118].clone()
        collective.sum_over_ranks(values)
        collective.sum_over_ranks(one)
        return torch.stack([values[117], one[0]])

    for together, alone in on_ranks(tmp_path, work):
        assert torch.equal(together, alone)


@DTYPES
@pytest.mark.parametrize("num_columns", [1500, 1501])
def test_large_tensors_have_the_same_sums(
    tmp_path: Path, dtype: torch.dtype, num_columns: int
) -> None:
    """Of so many columns ranks can, or cannot, each add up a segment."""
    whole = torch.randn(SIZE, 401, num_columns).mul_(100).to(dtype)

    def work(collective: Collective) -> torch.Tensor:
        values = whole[collective.rank].clone()
        collective.sum_over_ranks(values)
        # However a row was exchanged.
        first = whole[collective.rank, :1].clone()
        collective.sum_over_ranks(first)
        assert torch.equal(values[:1], first)
        return values

    for found in on_ranks(tmp_path, work):
        assert torch.equal(found, whole[0] + whole[1] + whole[2])


@DTYPES
def test_columns_lie_beside_each_other_in_the_order_of_ranks(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    expected = torch.cat([values_of(rank, dtype) for rank in range(SIZE)], dim=1)
    for found in on_ranks(tmp_path, lambda c: c.gather_columns(values_of(c.rank, dtype))):
        assert torch.equal(found, expected)


@DTYPES
def test_what_the_leader_has_is_everybodys(tmp_path: Path, dtype: torch.dtype) -> None:
    def work(collective: Collective) -> torch.Tensor:
        values = values_of(collective.rank, dtype)
        collective.copy_from_leader(values)
        return values

    for found in on_ranks(tmp_path, work):
        assert torch.equal(found, values_of(0, dtype))


def test_nothing_is_exchanged_without_trouble(tmp_path: Path) -> None:
    def work(collective: Collective) -> torch.Tensor:
        empty = torch.empty(0, 4)
        collective.sum_over_ranks(empty)
        collective.copy_from_leader(empty)
        return collective.gather_columns(empty)

    assert [found.shape for found in on_ranks(tmp_path, work)] == [(0, 4 * SIZE)] * SIZE


def test_a_rank_that_is_gone_is_an_error_of_the_others(tmp_path: Path) -> None:
    def work(collective: Collective) -> torch.Tensor:
        if collective.rank < 2:
            with pytest.raises(RuntimeError):
                collective.sum_over_ranks(torch.ones(3))
        return torch.empty(0)

    on_ranks(tmp_path, work)


def test_an_embedding_and_logits_of_a_vocabulary_in_parts(tmp_path: Path) -> None:
    """Of 7 rows two ranks have three and the last one."""
    table, ids = torch.randn(7, 4), torch.tensor([6, 0, 3, 3, 2])

    def work(collective: Collective) -> torch.Tensor:
        own = range(3 * collective.rank, min(7, 3 * collective.rank + 3))
        ranks = JoinedRanks(collective, own, 7)
        part = table[own.start : own.stop]
        rows = part[ranks.own_ids(ids)]
        ranks.sum_embedded(rows, ids)
        return torch.cat([rows, ranks.whole_logits(rows @ part.T)], dim=1)

    expected = torch.cat([table[ids], table[ids] @ table.T], dim=1)
    for found in on_ranks(tmp_path, work):
        torch.testing.assert_close(found, expected)


def test_a_lone_rank_exchanges_nothing() -> None:
    values, ids = torch.randn(2, 3), torch.tensor([1, 5])
    kept = values.clone()
    LONE_RANK.sum(values)
    LONE_RANK.sum_embedded(values, ids)
    assert torch.equal(values, kept)
    assert LONE_RANK.own_ids(ids) is ids
    assert LONE_RANK.whole_logits(values) is values


@pytest.mark.parametrize("size", [2, 3])
def test_what_gpus_exchange_is_the_same(tmp_path: Path, size: int) -> None:
    """Over gloo: of two ranks one sum of the backend's own, of more the order of ranks."""
    store = dist.HashStore()
    whole = torch.randn(size, 401, 1500).mul_(100)

    def run(rank: int) -> None:
        keys = dist.PrefixStore("life", store)
        group = dist.ProcessGroup(keys, rank, size)
        gloo = dist.ProcessGroup.BackendType.GLOO
        group._set_default_backend(gloo)
        group._register_backend(torch.device("cpu"), gloo, process_group(rank, size, keys))
        collective = NcclCollective(group)
        for rows in (1, 401):
            values = whole[rank, :rows].clone()
            collective.sum_over_ranks(values)
            assert torch.equal(values, sum(whole[1:, :rows], whole[0, :rows]))
        columns = torch.cat(list(whole), dim=1)
        assert torch.equal(collective.gather_columns(whole[rank]), columns)
        values = whole[rank].clone()
        collective.copy_from_leader(values)
        assert torch.equal(values, whole[0])
        collective.sum_over_ranks(torch.empty(0, 4))

    with ThreadPoolExecutor(size) as threads:
        list(threads.map(run, range(size)))


def test_the_best_of_every_block_of_a_vocabulary_in_parts(tmp_path: Path) -> None:
    """Ids are those of the whole vocabulary, blocks in their order; no number is one too."""
    values = torch.tensor([[[1.0, 9.0], [float("nan"), 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    values = torch.cat([values, values[:1] + 1])
    ids = torch.tensor([[0, 3], [1, 2]], dtype=torch.int32)

    def work(collective: Collective) -> torch.Tensor:
        rank = collective.rank
        ranks = JoinedRanks(collective, range(4 * rank, 4 * rank + 4), 12)
        best, named = ranks.whole_best(values[rank], ids)
        torch.testing.assert_close(best, torch.cat(list(values), dim=1), equal_nan=True)
        return named

    expected = torch.cat([ids, ids + 4, ids + 8], dim=1)
    for found in on_ranks(tmp_path, work):
        assert torch.equal(found, expected)


def test_unequal_parts_of_a_vocabulary_have_no_equal_blocks() -> None:
    ranks = JoinedRanks(OneOfThree(), range(3), 7)
    assert not ranks.is_even
    with pytest.raises(ValueError, match="a vocabulary of 7 has no equal blocks on all ranks"):
        ranks.whole_best(torch.empty(1, 1), torch.empty(1, 1, dtype=torch.int32))


class OneOfThree:
    """Rank 0, which meets nobody."""

    rank, size = 0, SIZE

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Nothing is added."""

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """It leads."""
