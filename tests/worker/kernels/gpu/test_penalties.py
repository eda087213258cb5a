"""Penalties on a GPU change logits as torch does, of the rows that they name and no others."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.penalties import PenalisedRows, penalise
from mizzen_worker.sampler.adjustments import adjust, penalise_on_gpu
from mizzen_worker.sampler.sampling_batch import Penalties, SamplingBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def penalties_of(num_rows: int, vocab_size: int) -> Penalties:
    """Of rows num_rows - 1, num_rows - 3, ..., counted in every third row of the tallies."""
    torch.manual_seed(vocab_size)
    rows = torch.arange(num_rows - 1, -1, -2)
    tallies = torch.randint(0, 8, (3 * num_rows, vocab_size), dtype=torch.int32)
    tallies[torch.rand(tallies.shape) < 0.8] = 0
    tallies[0] = 0
    return Penalties(
        rows=rows,
        tally_rows=rows * 3,
        tallies=tallies,
        repetition=torch.rand(len(rows)) + 0.5,
        frequency=torch.randn(len(rows)),
        presence=torch.randn(len(rows)),
    )


def moved(penalties: Penalties) -> Penalties:
    names = ("rows", "tally_rows", "tallies", "repetition", "frequency", "presence")
    return Penalties(**{name: getattr(penalties, name).to(DEVICE) for name in names})


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 1), (3, 127), (5, 4097), (2, 9000)])
def test_logits_become_torchs(num_rows: int, vocab_size: int) -> None:
    penalties = penalties_of(num_rows, vocab_size)
    wide = torch.randn(num_rows, vocab_size + 3)
    wide[0, 0] = -float("inf")
    expected = wide[:, :vocab_size].clone()
    found = wide.to(DEVICE)[:, :vocab_size]
    penalise_on_gpu(found, moved(penalties))
    nothing = torch.empty(0)
    names = (
        *("temperatures", "top_k", "top_p", "min_p", "seeds", "positions"),
        *("plain_rows", "filtered_rows"),
    )
    adjust(expected, SamplingBatch(**dict.fromkeys(names, nothing), penalties=penalties))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_tallies_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tallies \(6, 10\) do not count 9 ids"):
        penalise_on_gpu(torch.zeros(2, 9), penalties_of(2, 10))


def launch_all() -> None:
    index, real = empty(4, dtype=torch.int64), empty(4, dtype=torch.float32)
    for shape in benchmark_models.ALL:
        rows = PenalisedRows(
            rows=index,
            tally_rows=index,
            tallies=empty(4, shape.vocab_size, dtype=torch.int32),
            repetition=real,
            frequency=real,
            presence=real,
        )
        penalise(empty(4, shape.vocab_size, dtype=torch.float32), rows)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] == 0, record
