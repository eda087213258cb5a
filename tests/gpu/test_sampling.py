"""The sampler on a real GPU draws what it draws on the CPU, from the exact distribution."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver
from tests.worker.model_executor.scripted_forward import scripted_runner
from tests.worker.model_executor.test_slot_state import replace_sampling
from tests.worker.sampler.exact_distribution import Row, exact_distribution, sampling_batch
from tests.worker.sampler.test_sampler import CASES

from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.sampler.counter_random import uniform
from mizzen_worker.sampler.ranking import best_tokens
from mizzen_worker.sampler.sampler import Sampled, sample
from mizzen_worker.sampler.scores import score

pytestmark = pytest.mark.gpu

NUM_DRAWS = 4000
LEAST_P_VALUE = 1e-4
EVERY_CASE = pytest.mark.parametrize("name", sorted(CASES))


def on_cuda(value: Any) -> Any:
    """A tensor, or a dataclass of tensors, on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return dataclasses.replace(
            value, **{field.name: on_cuda(getattr(value, field.name)) for field in fields}
        )
    return value


def draw(logits: torch.Tensor, rows: list[Row]) -> Sampled:
    """Each row from the same [vocab] logits, or from its own of [n, vocab]; on the GPU."""
    own = logits.expand(len(rows), -1) if logits.dim() == 1 else logits
    batch = on_cuda(sampling_batch(rows, logits.shape[-1]))
    return sample(own.cuda().clone(memory_format=torch.contiguous_format), batch)


def draw_on_cpu(logits: torch.Tensor, rows: list[Row]) -> Sampled:
    own = logits.expand(len(rows), -1) if logits.dim() == 1 else logits
    return sample(own.clone(), sampling_batch(rows, logits.shape[-1]))


def random_logits(*shape: int, spread: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).normal(0, spread, shape).astype(np.float32))


def rows_of(case: Row, count: int) -> list[Row]:
    return [dataclasses.replace(case, position=i, seed=i * 7919 - 11) for i in range(count)]


def test_random_numbers_are_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randint(-(2**63), 2**63 - 1, (100_000,), generator=generator)
    positions = torch.randint(0, 2**40, (100_000,), generator=generator)
    assert torch.equal(uniform(seeds.cuda(), positions.cuda()).cpu(), uniform(seeds, positions))


@EVERY_CASE
@pytest.mark.parametrize("vocab_size", [20, 300, 5000])
def test_the_same_seeds_give_the_same_tokens(name: str, vocab_size: int) -> None:
    logits, rows = random_logits(vocab_size), rows_of(CASES[name], 500)
    found, expected = draw(logits, rows), draw_on_cpu(logits, rows)
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    assert bool(found.is_valid.all())


@EVERY_CASE
def test_draws_follow_the_exact_distribution(name: str) -> None:
    logits, case = random_logits(20, spread=1.0), CASES[name]
    rows = [dataclasses.replace(case, position=i) for i in range(NUM_DRAWS)]
    observed = np.bincount(draw(logits, rows).tokens.cpu().numpy(), minlength=20)
    expected = exact_distribution(logits.numpy(), case) * NUM_DRAWS
    assert observed[expected == 0].sum() == 0
    is_usual = expected >= 5
    share = expected[is_usual] * observed[is_usual].sum() / expected[is_usual].sum()
    assert stats.chisquare(observed[is_usual], share).pvalue > LEAST_P_VALUE


def test_a_row_draws_the_same_in_any_company() -> None:
    rows = [
        dataclasses.replace(row, seed=seed, position=seed + 3)
        for seed in range(8)
        for row in CASES.values()
    ]
    logits = random_logits(len(rows), 3000)
    together = draw(logits, rows).tokens.tolist()
    for index in range(0, len(rows), 5):
        alone = draw(logits[index : index + 1], rows[index : index + 1])
        assert alone.tokens.item() == together[index]


def test_a_vocabulary_of_full_size_with_ties() -> None:
    logits = random_logits(6, 151_936).bfloat16().float()
    rows = [
        Row(temperature=0.0),
        Row(),
        Row(top_p=0.9),
        Row(top_k=50),
        Row(min_p=0.1, temperature=0.8),
        Row(temperature=1.5, top_k=200, top_p=0.95, repetition=1.2, output=[3, 4]),
    ]
    found, expected = draw(logits, rows), draw_on_cpu(logits, rows)
    assert found.tokens.tolist() == expected.tokens.tolist()


@pytest.mark.parametrize("count", [1, 5, 20, 200])
def test_equal_logits_rank_by_id(count: int) -> None:
    logits = random_logits(40, 2000, spread=1.0).mul(4).round()
    values, ids = best_tokens(logits.cuda(), count)
    expected_values, expected_ids = best_tokens(logits, count)
    assert torch.equal(ids.cpu(), expected_ids)
    assert torch.equal(values.cpu(), expected_values)
    greedy = draw(logits, [Row(temperature=0.0)] * 40)
    assert torch.equal(greedy.tokens.cpu(), best_tokens(logits, 1)[1][:, 0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rows_without_finite_logits_are_marked_and_hurt_nobody(bad: float) -> None:
    rows = rows_of(Row(), 3) + rows_of(Row(top_p=0.8), 3) + rows_of(Row(temperature=0.0), 3)
    logits = random_logits(len(rows), 700)
    expected = draw_on_cpu(logits, rows).tokens
    logits[1::3] = bad
    found = draw(logits, rows)
    is_good = torch.tensor([True, False, True] * 3)
    assert torch.equal(found.is_valid.cpu(), is_good)
    assert torch.equal(found.tokens.cpu()[is_good], expected[is_good])
    assert 0 <= int(found.tokens.min()) <= int(found.tokens.max()) < 700


@pytest.mark.parametrize("num_top", [0, 4, 5000])
def test_scores_are_those_of_the_cpu(num_top: int) -> None:
    logits, targets = random_logits(70, 3000), torch.arange(70) * 31
    found, expected = score(logits.cuda(), targets.cuda(), num_top), score(logits, targets, num_top)
    torch.testing.assert_close(found.logprobs.cpu(), expected.logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found.top_logprobs.cpu(), expected.top_logprobs, rtol=1e-5, atol=1e-5
    )
    assert torch.equal(found.top_ids.cpu(), expected.top_ids)


EVERY_KIND = [
    replace_sampling(temperature=0.0, max_new_tokens=30),
    replace_sampling(max_new_tokens=30),
    replace_sampling(top_k=5, seed=2**64 - 3, max_new_tokens=30),
    replace_sampling(top_p=0.8, min_p=0.05, temperature=1.4, max_new_tokens=30),
    replace_sampling(
        repetition_penalty=1.4, frequency_penalty=0.8, presence_penalty=-0.5, max_new_tokens=30
    ),
    replace_sampling(
        logit_bias=((3, 4.0), (7, -9.0)), stop_token_ids=(4, 5, 9), min_new_tokens=8, top_p=0.9
    ),
    replace_sampling(logprobs=LogprobParams(num_top=3, prompt_start=0), presence_penalty=1.0),
]


def _generate(device: str, kinds: list[SamplingParams]) -> list[Driven]:
    runner, _ = scripted_runner(device=device)
    driver = RunnerDriver(runner)
    requests = [
        Driven(slot, [slot, 2, 3, 2 * slot], sampling, (1,))
        for slot, sampling in enumerate(kinds, 1)
    ]
    for request in requests:
        driver.start(request)
    driver.run([(request, 2) for request in requests[::2]])
    driver.run([(r, 4 - r.num_computed) for r in requests])
    driver.finish(requests)
    return requests


def test_requests_of_every_kind_get_the_tokens_of_the_cpu() -> None:
    found, expected = _generate("cuda", EVERY_KIND), _generate("cpu", EVERY_KIND)
    assert [request.output for request in found] == [request.output for request in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert ours.prompt_logprobs == pytest.approx(theirs.prompt_logprobs, abs=1e-4)
        assert [list(top) for top in ours.tops] == [list(top) for top in theirs.tops]
