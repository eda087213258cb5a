"""Embeddings from a part of a table: rows that are there, zeros for the others'."""

import pytest
import torch
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.embed_own import embed_own

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [48, 64])
def test_rows_of_other_parts_are_zeros(width: int, dtype: torch.dtype) -> None:
    table = torch.randn(10, width, device=DEVICE).to(dtype)
    ids = torch.tensor([0, 9, 3, 4, 3, 6, 7], device=DEVICE)
    parts = [embed_own(ids, table[first:end].clone(), first) for first, end in ((0, 4), (4, 10))]
    for first, end, found in ((0, 4, parts[0]), (4, 10, parts[1])):
        is_own = (ids >= first) & (ids < end)
        assert torch.equal(found, torch.where(is_own[:, None], table[ids], 0))
    assert torch.equal(parts[0] + parts[1], table[ids])


def test_ids_outside_the_whole_table_are_zeros() -> None:
    """Rows that fill a step up may have any."""
    table = torch.full((4, 16), float("nan"), device=DEVICE)
    ids = torch.tensor([-1, 1000], device=DEVICE)
    assert torch.equal(embed_own(ids, table, 4), torch.zeros(2, 16, device=DEVICE))


def test_no_tokens_are_no_work() -> None:
    ids = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    assert embed_own(ids, torch.zeros(4, 16, device=DEVICE), 0).shape == (0, 16)


def launch_all() -> None:
    """Of both ranks, one token and some."""
    for num_tokens in (1, 32):
        for first in (0, 64128):
            embed_own(empty(num_tokens, dtype=torch.int64), empty(64128, 4096), first)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
