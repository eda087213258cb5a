"""Log-probabilities and best tokens on a GPU are torch's: ties, minus infinity, any shape."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.launching import dependent
from mizzen_worker.kernels.gpu.scoring import MAX_BEST, score_rows
from mizzen_worker.sampler.scores import score, score_on_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INF = float("inf")


@pytest.fixture(autouse=True)
def _quiet_interpreter() -> Iterator[None]:
    # Interpreted kernels compute with NumPy, which tells of infinities.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def normal(num_rows: int, vocab_size: int, spread: float = 3.0) -> torch.Tensor:
    values = np.random.default_rng(vocab_size).normal(0, spread, (num_rows, vocab_size))
    return torch.from_numpy(values.astype(np.float32))


def require_torchs_scores(logits: torch.Tensor, num_best: int) -> None:
    num_rows, vocab_size = logits.shape
    targets = torch.arange(num_rows) * 7 % vocab_size
    found = score_on_gpu(logits.to(DEVICE), targets.to(DEVICE), num_best)
    expected = score(logits, targets, num_best)
    torch.testing.assert_close(found.logprobs.cpu(), expected.logprobs, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.top_ids.cpu(), expected.top_ids)
    assert found.top_ids.dtype == torch.int32
    best = found.top_logprobs.cpu()
    torch.testing.assert_close(best, expected.top_logprobs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 3, 128, 700, 4500])
@pytest.mark.parametrize("num_best", [0, 1, 20, 33, 128])
def test_scores_equal_torchs(vocab_size: int, num_best: int) -> None:
    require_torchs_scores(normal(2, vocab_size), min(num_best, vocab_size))


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_equal_logits_rank_by_id(spread: float) -> None:
    logits = normal(3, 700, spread).round()
    for num_best in (1, 5, 20):
        require_torchs_scores(logits, num_best)


def test_the_best_reach_into_what_has_no_probability() -> None:
    logits = torch.full((2, 600), -INF)
    logits[0, [3, 299, 300]] = torch.tensor([1.0, 2.0, 2.0])
    logits[1, 599] = -5.0
    require_torchs_scores(logits, 20)


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    logits = normal(4, 400)
    logits[1, 399] = float("nan")
    logits[2] = -INF
    targets = torch.zeros(4, dtype=torch.int64)
    logprobs, ids, best = score_rows(logits.to(DEVICE), targets.to(DEVICE), 5)
    assert logprobs.isnan().tolist() == [False, True, True, False]
    assert best.isnan().any(1).tolist() == [False, True, True, False]
    assert ((ids >= 0) & (ids < 400)).all()
    require_torchs_scores(logits[[0, 3]], 5)


def test_wrong_arguments_are_refused() -> None:
    logits, targets = torch.zeros(2, 300), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"129 best of 300 tokens; give at most {MAX_BEST}"):
        score_rows(logits, targets, 129)
    with pytest.raises(ValueError, match=r"targets: shape \(1,\); give \[2\]"):
        score_rows(logits, targets[:1], 3)
    assert score_rows(logits[:0], targets[:0], 3)[1].shape == (0, 3)


def launch_all() -> None:
    for shape in benchmark_models.ALL:
        logits = empty(4, shape.vocab_size, dtype=torch.float32)
        for num_best in (0, 20, MAX_BEST):
            score_rows(logits, empty(4, dtype=torch.int64), num_best, dependent())


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_every_shipped_configuration_compiles(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] <= 32, record
