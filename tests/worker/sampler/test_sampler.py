"""The sampler draws from exactly the distribution its parameters describe."""

import numpy as np
import pytest
import torch

from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.sampler import sampler
from mizzen_worker.sampler.sampler import sample
from mizzen_worker.sampler.sampling_batch import SamplingBatch

Row = dict[str, float]


def batch_of(rows: list[Row], forbidden: list[list[int]] | None = None) -> SamplingBatch:
    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype)

    temperatures = column("temperature", 1.0, torch.float32)
    return SamplingBatch(
        temperatures=temperatures,
        top_k=column("top_k", 0, torch.int64),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seeds=column("seed", 1, torch.int64),
        positions=column("position", 0, torch.int64),
        forbidden=torch.tensor(forbidden or [[-1]] * len(rows)),
        is_all_greedy=bool((temperatures == 0).all()),
        has_forbidden=forbidden is not None,
    )


def exact_distribution(logits: np.ndarray, row: Row) -> np.ndarray:
    """Written the slow way, in the order that the contract states."""
    scaled = logits.astype(np.float64) / row.get("temperature", 1.0)
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if row.get("top_k", 0):
        weights[order[int(row["top_k"]) :]] = 0
    weights /= weights.sum()
    before = np.cumsum(weights[order]) - weights[order]
    excluded = order[before >= row.get("top_p", 1.0)]
    best = weights.max()
    weights[[token for token in excluded if token != order[0]]] = 0
    weights[weights < row.get("min_p", 0.0) * best] = 0
    return weights / weights.sum()


CASES: dict[str, Row] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.4},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
}


def draw_counts(
    row: Row, logits: np.ndarray, count: int, monkeypatch: pytest.MonkeyPatch | None = None
) -> np.ndarray:
    """How often each id was drawn in ``count`` draws; evenly spaced ones where patched."""
    if monkeypatch is not None:
        grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        monkeypatch.setattr(sampler, "uniform", lambda _seeds, positions: grid[positions])
    rows = [{**row, "position": i} for i in range(count)]
    chosen = sample(torch.from_numpy(logits).expand(count, -1), batch_of(rows))
    return np.bincount(chosen.numpy(), minlength=len(logits))


@pytest.mark.parametrize("vocab_size", [30, 300])
@pytest.mark.parametrize("name", sorted(CASES))
def test_evenly_spaced_draws_hit_each_id_exactly_in_proportion(
    name: str, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An id holds one interval of [0, 1), so its count is its share to within one draw: tighter
    # than any number of random draws could show. 300 ids are more than the first candidates.
    count = 1000
    logits = np.random.default_rng(4).normal(0, 2, vocab_size).astype(np.float32)
    expected = exact_distribution(logits, CASES[name]) * count
    observed = draw_counts(CASES[name], logits, count, monkeypatch)
    assert observed[expected == 0].sum() == 0
    assert np.abs(observed - expected).max() < 1.01


@pytest.mark.parametrize("name", ["plain", "all"])
def test_random_draws_follow_the_exact_distribution(name: str) -> None:
    count = 4000
    logits = np.random.default_rng(4).normal(0, 1, 20).astype(np.float32)
    expected = exact_distribution(logits, CASES[name]) * count
    observed = draw_counts(CASES[name], logits, count)
    assert observed[expected == 0].sum() == 0
    held = expected > 0
    assert expected[held].min() >= 5
    chi_square = ((observed[held] - expected[held]) ** 2 / expected[held]).sum()
    freedom = int(held.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 8


def test_flat_distribution_beyond_the_candidates_is_sampled_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Evenly flat: top-p leaves 900 ids of 1000, each drawn once in 900 evenly spaced draws.
    logits = np.zeros(1000, dtype=np.float32)
    observed = draw_counts({"top_p": 0.9}, logits, 900, monkeypatch)
    assert 900 <= (observed > 0).sum() + 1 <= 902
    assert observed.max() <= 2


def test_a_row_draws_the_same_token_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 5000, generator=generator) * 3
    rows = [
        {"seed": 3, "position": 10},
        {"temperature": 0},
        {"seed": 3, "position": 10, "top_p": 0.9},
        {"seed": 9, "position": 11, "top_k": 40, "temperature": 0.8},
        {"seed": 1, "min_p": 0.1},
        {"seed": 5, "top_p": 0.999, "temperature": 3.0},
        {"seed": 6, "top_k": 300},
        {"seed": 7, "temperature": 5.0},
    ]
    together = sample(logits, batch_of(rows))
    backwards = sample(logits.flip(0), batch_of(rows[::-1])).flip(0)
    alone = torch.cat([sample(logits[i : i + 1], batch_of([row])) for i, row in enumerate(rows)])
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)


def test_greedy_takes_the_largest_and_top_k_of_one_too() -> None:
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(8))
    rows = [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}]
    assert torch.equal(sample(logits, batch_of(rows)), logits.argmax(-1))


def test_forbidden_ids_are_never_chosen() -> None:
    logits = torch.zeros(500, 6)
    logits[:, 2] = 10
    rows = [{"position": i} for i in range(500)]
    chosen = sample(logits, batch_of(rows, forbidden=[[2, -1]] * 250 + [[2, 5]] * 250))
    assert 2 not in chosen
    assert 5 in chosen[:250]
    assert 5 not in chosen[250:]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_a_device_error(value: float) -> None:
    logits = torch.full((2, 9), value)
    logits[0] = 0
    with pytest.raises(DeviceError, match="not finite"):
        sample(logits, batch_of([{}, {}]))
