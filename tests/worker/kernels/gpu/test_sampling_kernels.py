"""Tokens chosen on a GPU are those of the CPU's sampler: filters, ties, extremes, any shape."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tests import benchmark_models
from tests.scale import slow_case
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty
from tests.worker.sampler.exact_distribution import Row, sampling_batch

from mizzen_worker.kernels.gpu.launching import dependent
from mizzen_worker.kernels.gpu.sampling import DrawParameters, block_statistics, choose_best, draw
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.sampler.gpu_choice import choose_on_gpu
from mizzen_worker.sampler.sampler import sample

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INF = float("inf")
EVERY_SET = [None, *INSTRUCTION_SETS]
LEAST_TEMPERATURE = 1.1754943508222875e-38


@pytest.fixture(autouse=True)
def _quiet_interpreter() -> Iterator[None]:
    # Interpreted kernels compute with NumPy, which tells of infinities.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def choose(logits: torch.Tensor, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = sampling_batch(rows, logits.shape[1])
    moved = replace(
        batch,
        **{
            name: getattr(batch, name).to(DEVICE)
            for name in ("temperatures", "top_k", "top_p", "min_p", "seeds", "positions")
        },
    )
    tokens, is_valid = choose_on_gpu(logits.to(DEVICE), moved)
    return tokens.cpu(), is_valid.cpu()


def require_the_cpus_tokens(logits: torch.Tensor, rows: list[Row]) -> None:
    """Equal to torch and to every native set; seeds are chosen so that no draw is on a border."""
    tokens, is_valid = choose(logits, rows)
    assert ((tokens >= 0) & (tokens < logits.shape[1])).all()
    for instruction_set in EVERY_SET:
        batch = sampling_batch(rows, logits.shape[1])
        expected = sample(logits.clone(), batch, instruction_set)
        assert is_valid.tolist() == expected.is_valid.tolist()
        found = list(zip(rows, tokens[is_valid].tolist(), strict=False))
        wanted = list(zip(rows, expected.tokens[is_valid].tolist(), strict=False))
        assert found == wanted, instruction_set


def normal(num_rows: int, vocab_size: int, spread: float = 2.0) -> torch.Tensor:
    values = np.random.default_rng(vocab_size).normal(0, spread, (num_rows, vocab_size))
    return torch.from_numpy(values.astype(np.float32))


FILTERS = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 200},
    {"top_p": 0.0},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 1e-4, "top_p": 0.9},
    {"top_k": 50, "top_p": 0.95, "temperature": 0.8},
    {"top_k": 9, "top_p": 0.7, "min_p": 0.05, "temperature": 1.4},
    {"top_p": 0.9, "temperature": 30.0},
]
"""Between them every way through the choice."""


def rows_of_every_kind() -> list[Row]:
    return [
        Row(**filters, seed=17 * index - 40, position=index * index)
        for index, filters in enumerate(FILTERS)
    ]


@pytest.mark.parametrize("vocab_size", [slow_case(1), 3, slow_case(128), 129, 4500])
def test_every_filter_chooses_the_cpus_tokens(vocab_size: int) -> None:
    rows = rows_of_every_kind()
    require_the_cpus_tokens(normal(len(rows), vocab_size), rows)


@pytest.mark.parametrize("spread", [slow_case(0.0), 3.0])
def test_equal_logits_are_kept_by_id(spread: float) -> None:
    rows = rows_of_every_kind()
    require_the_cpus_tokens(normal(len(rows), 300, spread).round(), rows)


def test_tokens_without_probability_are_not_chosen() -> None:
    rows = rows_of_every_kind()
    logits = normal(len(rows), 600)
    logits[:, np.random.default_rng(2).random(600) < 0.9] = -INF
    logits[:, 256:384] = -INF
    require_the_cpus_tokens(logits, rows)


@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 1e-6, 1e37])
def test_extreme_temperatures_and_logits(temperature: float) -> None:
    rows = [
        Row(temperature=temperature, seed=seed, **filters)
        for seed, filters in enumerate(({}, {"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.3}))
    ]
    for factor in (1.0, 1e5, 1e36):
        require_the_cpus_tokens(normal(len(rows), 300) * factor, rows)


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_a_row_without_finite_best_is_not_valid_and_spoils_no_other(value: float) -> None:
    kinds = [Row(temperature=0.0), Row(), Row(top_k=3), Row(top_p=0.9, min_p=0.1)]
    good = normal(len(kinds), 400)
    bad = good.clone()
    bad[:, 200] = value
    if value < 0:
        bad[:] = value
    logits, rows = torch.cat([bad, good]), kinds + kinds
    tokens, is_valid = choose(logits, rows)
    assert is_valid.tolist() == [False] * 4 + [True] * 4
    assert tokens[:4].tolist() == [0] * 4
    assert tokens[4:].tolist() == choose(good, kinds)[0].tolist()


def test_any_parameters_end_with_a_token_of_the_vocabulary() -> None:
    # Rows that only fill a captured batch up may hold anything.
    numbers = (float("nan"), INF, -INF, -1.0, 0.0, 2.0)
    rows = [
        Row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        for temperature, (top_k, top_p), min_p in product(
            numbers, zip((-5, 2**40, 3, 0, 0, 7), numbers, strict=True), (numbers[0], 0.0)
        )
    ]
    tokens, is_valid = choose(normal(len(rows), 200), rows)
    assert is_valid.all()
    assert ((tokens >= 0) & (tokens < 200)).all()


def test_a_row_is_chosen_alike_in_any_batch_stride_and_alignment() -> None:
    rows = rows_of_every_kind()[2::3]
    logits = normal(len(rows), 140)
    together = choose(logits, rows)[0]
    wide = torch.full((len(rows), 173), 100.0)
    wide[:, 5:145] = logits
    assert choose(wide[:, 5:145], rows)[0].tolist() == together.tolist()
    backwards = choose(logits.flip(0), rows[::-1])[0].flip(0)
    assert backwards.tolist() == together.tolist()
    alone = [choose(logits[i : i + 1], [row])[0].item() for i, row in enumerate(rows)]
    assert alone == together.tolist()


def test_many_rows_at_once() -> None:
    num_rows = 140
    rows = [Row(temperature=0.0 if i % 3 else 1.0, seed=i) for i in range(num_rows)]
    require_the_cpus_tokens(normal(num_rows, 20), rows)
    assert choose(torch.empty(0, 20), [])[0].shape == (0,)


def test_block_statistics_are_the_maxima_and_sums_of_weights() -> None:
    logits = normal(2, 300)
    logits[0, 128:256] = -INF
    logits[1, 5] = float("nan")
    maxima, sums = (part.cpu() for part in block_statistics(logits.to(DEVICE)))
    padded = torch.nn.functional.pad(logits, (0, 84), value=-INF).view(2, 3, 128)
    expected = padded.amax(-1)
    assert maxima[1, 0].isnan()
    torch.testing.assert_close(maxima[0], expected[0], rtol=0, atol=0)
    torch.testing.assert_close(maxima[1, 1:], expected[1, 1:], rtol=0, atol=0)
    whole = (sums[0] * maxima[0].clamp(min=-1e30).exp()).sum().log()
    torch.testing.assert_close(whole, logits[0].logsumexp(-1))
    assert sums[0, 1] == 0


@pytest.mark.parametrize("num_best", [1, 3, 200])
def test_the_best_of_blocks_is_the_lowest_id_of_the_largest(num_best: int) -> None:
    values = normal(6, num_best).round()
    ids = torch.from_numpy(np.random.default_rng(1).permutation(num_best * 6).astype(np.int32))
    ids = ids.view(6, num_best)
    values[4, num_best // 2] = float("nan")
    values[5] = -INF
    found, is_valid = (part.cpu() for part in choose_best(values.to(DEVICE), ids.to(DEVICE)))
    assert is_valid.tolist() == [True] * 4 + [False] * 2
    largest = values.amax(-1, keepdim=True)
    expected = torch.where(values == largest, ids, 2**30).amin(-1)
    assert found[:4].tolist() == expected[:4].tolist()
    assert found[4:].tolist() == [0, 0]


def test_wrong_shapes_are_refused() -> None:
    logits = torch.zeros(3, 10)
    with pytest.raises(ValueError, match=r"temperatures: shape \(2,\); give \[3\], contiguous"):
        choose(logits, [Row(), Row()])
    with pytest.raises(ValueError, match="float32"):
        choose(logits.double(), [Row()] * 3)
    with pytest.raises(ValueError, match="contiguous"):
        choose(torch.zeros(10, 3).t(), [Row()] * 3)


def launch_all() -> None:
    for shape in benchmark_models.ALL:
        logits, launch = empty(4, shape.vocab_size, dtype=torch.float32), dependent()
        real, index = empty(4, dtype=torch.float32), empty(4, dtype=torch.int64)
        parameters = DrawParameters(
            temperatures=real,
            top_k=index.int(),
            top_p=real,
            min_p=real,
            seeds=index,
            positions=index,
        )
        draw(logits, parameters, launch)
        maxima, _ = block_statistics(logits, launch=launch)
        choose_best(maxima, maxima.int(), launch)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_every_shipped_configuration_compiles(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] <= 32, record
