"""The best of each block of logits: odd widths, ties, NaN, infinities."""

import math

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.block_best import block_best
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("columns", [1, 100, 4096, 4097, 9000])
def test_the_best_over_all_blocks_is_the_best_of_the_row(columns: int) -> None:
    torch.manual_seed(columns)
    # Few distinct values: ties are everywhere.
    logits = torch.randint(-40, 40, (3, columns), device=DEVICE).float()
    values, ids = block_best(logits, PLAIN)
    assert values.shape == ids.shape == (3, math.ceil(columns / 4096))
    best = values.max(-1)
    assert torch.equal(best.values, logits.max(-1).values)
    found = ids.long().gather(1, best.indices[:, None])[:, 0]
    assert torch.equal(found, logits.argmax(-1))


def test_nan_shows_and_infinity_is_a_value() -> None:
    logits = torch.zeros(3, 5000, device=DEVICE)
    logits[0, 17] = torch.nan
    logits[1] = -torch.inf
    logits[2, 4990] = torch.inf
    values, ids = block_best(logits, PLAIN)
    assert values[0, 0].isnan()
    assert values[0, 1] == 0
    assert values[1].tolist() == [-math.inf, -math.inf]
    assert ids[1].tolist() == [0, 4096]
    assert (values[2, 1], ids[2, 1]) == (math.inf, 4990)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous float32 logits"):
        block_best(torch.zeros(1, 8, dtype=torch.bfloat16, device=DEVICE), PLAIN)


def launch_all() -> None:
    for shape in benchmark_models.ALL:
        block_best(empty(1, shape.vocab_size, dtype=torch.float32), dependent())


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
