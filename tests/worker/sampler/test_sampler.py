"""The sampler draws from exactly the distribution its parameters describe."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.scale import count
from tests.worker.sampler.exact_distribution import Row, exact_distribution, sampling_batch

from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.sampler import sampler
from mizzen_worker.sampler.sampler import Sampled, sample

CASES: dict[str, Row] = {
    "plain": Row(),
    "hot": Row(temperature=1.7),
    "cold": Row(temperature=0.4),
    "top-k": Row(top_k=5),
    "top-p": Row(top_p=0.7),
    "min-p": Row(min_p=0.2),
    "top-k and top-p": Row(top_k=9, top_p=0.85),
    "top-p and min-p": Row(top_p=0.95, min_p=0.1, temperature=1.2),
    "all filters": Row(temperature=1.3, top_k=12, top_p=0.8, min_p=0.05),
    "bias": Row(bias={3: 1.5, 7: -2.0, 11: -100.0}),
    "repetition": Row(repetition=1.4, prompt=[1, 2, 3], output=[3, 8]),
    "frequency": Row(frequency=0.4, prompt=[1], output=[2, 2, 2, 5]),
    "presence": Row(presence=0.9, prompt=[1], output=[2, 2, 2, 5]),
    "encouraged": Row(repetition=0.8, frequency=-0.3, presence=-0.2, output=[4, 4, 9]),
    "forbidden": Row(forbidden=[0, 6]),
    "everything": Row(
        temperature=1.2,
        top_k=14,
        top_p=0.9,
        min_p=0.02,
        repetition=1.2,
        frequency=0.2,
        presence=0.3,
        prompt=[0, 1, 2],
        output=[1, 5, 5],
        bias={9: 0.7, 5: 0.4},
        forbidden=[10],
    ),
}

NUM_DRAWS = count(check=800, full=8000)
NUM_EVEN_DRAWS = count(check=250, full=1000)
LEAST_P_VALUE = 1e-4
"""Seeds are fixed, so a case passes always or never; of wrong samplers, one in 10,000 would."""


EVERY_SET = pytest.mark.parametrize("instruction_set", [None, *INSTRUCTION_SETS])
"""None is torch."""


def choose(
    logits: np.ndarray | torch.Tensor, rows: list[Row], instruction_set: str | None = None
) -> Sampled:
    """Sample copies of [vocab] logits, or [n, vocab] as they are."""
    given = torch.as_tensor(logits)
    rows_of_logits = given.expand(len(rows), -1) if given.dim() == 1 else given
    return sample(rows_of_logits.clone(), sampling_batch(rows, given.shape[-1]), instruction_set)


def draw_counts(
    row: Row, logits: np.ndarray, num_draws: int, instruction_set: str | None = None
) -> np.ndarray:
    """How often each id was drawn in ``num_draws`` draws."""
    rows = [replace(row, position=i) for i in range(num_draws)]
    chosen = choose(logits, rows, instruction_set)
    assert chosen.is_valid.all()
    return np.bincount(chosen.tokens.numpy(), minlength=len(logits))


def space_draws_evenly(monkeypatch: pytest.MonkeyPatch, num_draws: int) -> None:
    grid = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    monkeypatch.setattr(sampler, "uniform", lambda _seeds, positions: grid[positions])


@pytest.mark.parametrize("vocab_size", [30, 300])
@pytest.mark.parametrize("name", sorted(CASES))
def test_evenly_spaced_draws_hit_each_id_exactly_in_proportion(
    name: str, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An id holds one interval of [0, 1), so its count is its share to within one draw: tighter
    # than any number of random draws could show. 300 ids are more than the first candidates.
    logits = np.random.default_rng(4).normal(0, 2, vocab_size).astype(np.float32)
    expected = exact_distribution(logits, CASES[name]) * NUM_EVEN_DRAWS
    space_draws_evenly(monkeypatch, NUM_EVEN_DRAWS)
    observed = draw_counts(CASES[name], logits, NUM_EVEN_DRAWS)
    assert observed[expected == 0].sum() == 0
    assert np.abs(observed - expected).max() < 1.01


@EVERY_SET
@pytest.mark.parametrize("name", sorted(CASES))
def test_random_draws_follow_the_exact_distribution(name: str, instruction_set: str | None) -> None:
    logits = np.random.default_rng(4).normal(0, 1, 20).astype(np.float32)
    expected = exact_distribution(logits, CASES[name]) * NUM_DRAWS
    observed = draw_counts(CASES[name], logits, NUM_DRAWS, instruction_set)
    # Ids below five expected draws count as one class, as the approximation needs.
    is_rare = expected < 5
    classes = [
        np.append(values[~is_rare], values[is_rare].sum()) for values in (observed, expected)
    ]
    assert observed[expected == 0].sum() == 0
    if classes[1][-1] < 5:
        classes = [values[:-1] for values in classes]
        classes[1] *= classes[0].sum() / classes[1].sum()
    assert stats.chisquare(*classes).pvalue > LEAST_P_VALUE


def test_draws_at_neighbouring_positions_are_independent() -> None:
    # Pairs of draws at positions p and p + 1 of one request, against the product distribution.
    logits = np.linspace(-0.3, 0.3, 4, dtype=np.float32)
    rows = [Row(seed=17, position=i) for i in range(NUM_DRAWS)]
    tokens = choose(logits, rows).tokens.numpy()
    observed = np.bincount(tokens[::2] * 4 + tokens[1::2], minlength=16)
    shares = exact_distribution(logits, Row())
    expected = np.outer(shares, shares).ravel() * (NUM_DRAWS // 2)
    assert expected.min() >= 5
    assert stats.chisquare(observed, expected).pvalue > LEAST_P_VALUE


def test_flat_distribution_beyond_the_candidates_is_sampled_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Evenly flat: top-p leaves 900 ids of 1000, each drawn once in 900 evenly spaced draws.
    logits = np.zeros(1000, dtype=np.float32)
    space_draws_evenly(monkeypatch, 900)
    observed = draw_counts(Row(top_p=0.9), logits, 900)
    assert 900 <= (observed > 0).sum() + 1 <= 902
    assert observed.max() <= 2


def test_equal_logits_are_ranked_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    # 600 ids share the best value: top-k keeps the lowest of them, wherever the candidates end.
    logits = np.zeros(5000, dtype=np.float32)
    logits[4000:4600] = 1.0
    for top_k in (1, 7, 255, 256, 257, 400):
        monkeypatch.undo()
        space_draws_evenly(monkeypatch, top_k)
        observed = draw_counts(Row(top_k=top_k), logits, top_k)
        np.testing.assert_array_equal(np.flatnonzero(observed), 4000 + np.arange(top_k))


_ROWS = st.builds(
    Row,
    temperature=st.sampled_from([0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 300]),
    top_p=st.sampled_from([1.0, 0.0, 0.2, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 100_000),
)


@pytest.mark.parametrize(
    "instruction_set",
    INSTRUCTION_SETS
    or [pytest.param("", marks=pytest.mark.skip(reason="missing: the native extension"))],
)
@given(
    rows=st.lists(_ROWS, min_size=1, max_size=8),
    vocab_size=st.sampled_from([1, 3, 16, 63, 65, 300, 5000]),
    spread=st.sampled_from([0.5, 3.0, 20.0]),
    seed=st.integers(0, 10_000),
    rounding=st.sampled_from([None, 0]),
)
def test_native_choice_equals_torch(
    instruction_set: str,
    rows: list[Row],
    vocab_size: int,
    spread: float,
    seed: int,
    rounding: int | None,
) -> None:
    # Sums in another order differ by 1e-7 of the whole, so a draw in some millions may differ.
    logits = np.random.default_rng(seed).normal(0, spread, (len(rows), vocab_size))
    if rounding is not None:
        logits = np.round(logits, rounding)  # ties, and minus zeros
    logits[logits < -2 * spread] = -np.inf
    logits[0, 0] = np.nan if seed % 7 == 0 else 0.0
    given_logits = torch.from_numpy(logits.astype(np.float32))
    expected = choose(given_logits, rows)
    got = choose(given_logits, rows, instruction_set)
    assert torch.equal(got.is_valid, expected.is_valid)
    assert torch.equal(got.tokens[got.is_valid], expected.tokens[got.is_valid])


@EVERY_SET
@pytest.mark.parametrize("rows_at_once", [2, 5])
def test_a_row_draws_the_same_token_in_any_batch(
    rows_at_once: int, instruction_set: str | None
) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = [
        Row(seed=3, position=10),
        Row(temperature=0),
        Row(seed=3, position=10, top_p=0.9),
        Row(seed=9, position=11, top_k=40, temperature=0.8),
        Row(seed=1, min_p=0.1, repetition=1.3, prompt=[4], output=[5, 6]),
        Row(seed=5, top_p=0.999, temperature=3.0, bias={7: 2.5}),
        Row(seed=6, top_k=300, forbidden=[1, 2]),
        Row(seed=7, temperature=5.0, presence=0.5, output=[9]),
        Row(temperature=0, frequency=1.5, output=[3, 3], bias={12: 1.0}),
    ]
    logits = torch.randn(len(rows), 5000, generator=generator) * 3
    together = choose(logits, rows, instruction_set).tokens
    backwards = choose(logits.flip(0), rows[::-1], instruction_set).tokens.flip(0)
    alone = [choose(logits[i], [row], instruction_set).tokens for i, row in enumerate(rows)]
    some = [
        choose(logits[i : i + rows_at_once], rows[i : i + rows_at_once], instruction_set).tokens
        for i in range(0, len(rows), rows_at_once)
    ]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together, torch.cat(some))
    assert torch.equal(together, backwards)


@EVERY_SET
def test_greedy_takes_the_largest_and_top_k_of_one_too(instruction_set: str | None) -> None:
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(8))
    rows = [Row(temperature=0), Row(top_k=1), Row(top_p=1e-9)]
    assert torch.equal(choose(logits, rows, instruction_set).tokens, logits.argmax(-1))


@EVERY_SET
def test_greedy_takes_the_lowest_of_equal_ids(instruction_set: str | None) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[[999, 300, 301]] = 2.0
    chosen = choose(logits, [Row(temperature=0)] * 3, instruction_set)
    assert chosen.tokens.tolist() == [300] * 3


@EVERY_SET
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [Row(temperature=0), Row(), Row(top_p=0.9), Row(top_k=3)])
def test_a_row_without_finite_logits_spoils_no_other(
    value: float, row: Row, instruction_set: str | None
) -> None:
    good = torch.randn(2, 3000, generator=torch.Generator().manual_seed(5))
    logits = torch.stack([good[0], torch.full((3000,), value), good[1]])
    sampled = choose(logits, [row] * 3, instruction_set)
    assert sampled.is_valid.tolist() == [True, False, True]
    assert 0 <= sampled.tokens[1] < 3000
    expected = choose(good, [row] * 2, instruction_set).tokens
    assert torch.equal(sampled.tokens[::2], expected)


@EVERY_SET
def test_one_nan_among_good_logits_makes_the_row_invalid(instruction_set: str | None) -> None:
    logits = np.zeros(50, dtype=np.float32)
    logits[20] = np.nan
    rows = [Row(temperature=0), Row(), Row(top_k=4)]
    assert not choose(logits, rows, instruction_set).is_valid.any()


def test_a_row_of_which_every_id_is_forbidden_is_invalid() -> None:
    logits = np.zeros(3, dtype=np.float32)
    assert choose(logits, [Row(forbidden=[0, 1, 2]), Row()]).is_valid.tolist() == [False, True]
