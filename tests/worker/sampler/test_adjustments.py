"""Bias and penalties equal their formulas, and transformers' processors where it has one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.sampler.exact_distribution import Row, exact_logits, sampling_batch
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.sampler.adjustments import adjust

VOCAB_SIZE = 40


EVERY_SET = pytest.mark.parametrize("instruction_set", [None, *INSTRUCTION_SETS])
"""None is torch."""


def adjusted(logits: np.ndarray, rows: list[Row], instruction_set: str | None = None) -> np.ndarray:
    changed = torch.from_numpy(logits.copy())
    adjust(changed, sampling_batch(rows, logits.shape[1]), instruction_set)
    return changed.numpy()


def random_logits(seed: int, num_rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (num_rows, VOCAB_SIZE)).astype(np.float32)


@EVERY_SET
def test_repetition_penalty_equals_transformers(instruction_set: str | None) -> None:
    logits = random_logits(1, 3)
    prompt, output = [3, 5, 5, 8], [8, 9, 30]
    for penalty in (0.7, 1.1, 2.5):
        processor = RepetitionPenaltyLogitsProcessor(penalty=penalty)
        ids = torch.tensor([prompt + output] * 3)
        expected = processor(ids, torch.from_numpy(logits.copy())).numpy()
        row = Row(repetition=penalty, prompt=prompt, output=output)
        np.testing.assert_allclose(
            adjusted(logits, [row] * 3, instruction_set), expected, rtol=1e-6
        )


def test_bias_equals_transformers() -> None:
    logits = random_logits(2, 2)
    bias = {4: 2.5, 9: -3.0, 0: 100.0}
    processor = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    expected = processor(torch.tensor([[1], [1]]), torch.from_numpy(logits.copy())).numpy()
    np.testing.assert_allclose(adjusted(logits, [Row(bias=bias)] * 2), expected, rtol=1e-6)


_IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8)
_ROWS = st.builds(
    Row,
    repetition=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    frequency=st.sampled_from([0.0, -1.0, 0.25]),
    presence=st.sampled_from([0.0, -0.5, 2.0]),
    prompt=_IDS,
    output=_IDS,
    bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([-100.0, 0.5, 7.0])),
    forbidden=_IDS,
)


@EVERY_SET
@given(rows=st.lists(_ROWS, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_any_rows_together_equal_the_formulas_one_by_one(
    instruction_set: str | None, rows: list[Row], seed: int
) -> None:
    logits = random_logits(seed, len(rows))
    expected = [exact_logits(values, row) for values, row in zip(logits, rows, strict=True)]
    got = adjusted(logits, rows, instruction_set)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
