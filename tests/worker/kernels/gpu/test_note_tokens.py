"""Tokens noted by the kernel equal ``SlotState.record`` in torch: ends, stop ids, bad rows."""

import numpy as np
import pytest
import torch
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.contracts.batch import INVALID_TOKEN, NO_TOKEN, RunnerLimits
from mizzen_worker.kernels.gpu.note_tokens import SampledEnds, note_tokens
from mizzen_worker.model_executor.device_link import StagedStep
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.sampler.sampler import Sampled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_SLOTS = 50
VOCAB = 40
LIMITS = RunnerLimits(
    max_slots=MAX_SLOTS, num_pages=9, page_size=4, context_length=64, vocab_size=VOCAB
)


def integers(dice: np.random.Generator, low: int, high: int, count: int) -> torch.Tensor:
    return torch.from_numpy(dice.integers(low, high, count))


@pytest.mark.parametrize(("num_rows", "width"), [(0, 4), (1, 4), (7, 16), (40, 5), (50, 19)])
def test_noted_tokens_are_those_of_the_record(num_rows: int, width: int) -> None:
    dice = np.random.default_rng(num_rows)
    state = SlotState(LIMITS, torch.device("cpu"))
    state.finished[1:] = torch.from_numpy(dice.random(MAX_SLOTS) < 0.25)
    state.last_tokens[1:] = integers(dice, 0, VOCAB, MAX_SLOTS)
    finished, last_tokens = state.finished.to(DEVICE).clone(), state.last_tokens.to(DEVICE).clone()
    stop_ids = integers(dice, 0, VOCAB, num_rows * width)
    stop_ids[torch.from_numpy(dice.random(num_rows * width) < 0.8)] = -1
    # Everything lies in one tensor, at places that no alignment is known of.
    longs = {
        "sampled_slots": torch.from_numpy(dice.permutation(MAX_SLOTS)[:num_rows] + 1),
        "sample_positions": integers(dice, 0, 30, num_rows),
        "integers": integers(dice, 20, 40, 2 * num_rows),
        "stop_ids": stop_ids,
    }
    tokens = integers(dice, 0, VOCAB, num_rows)
    is_valid = torch.from_numpy(dice.random(num_rows) < 0.8)
    packed = torch.cat([torch.zeros(1, dtype=torch.int64), *longs.values(), tokens]).to(DEVICE)
    sizes = [1, *(len(values) for values in longs.values()), num_rows]
    _, slots, positions, limits, stops, own = packed.split(sizes)
    ends = SampledEnds(
        slots=slots,
        positions=positions,
        max_tokens=limits[num_rows:],
        stop_ids=stops.view(num_rows, width),
    )
    noted = note_tokens(ends, own, is_valid.to(DEVICE), finished, last_tokens).cpu()
    staged = StagedStep(longs=longs, integers={}, reals={})
    expected = torch.empty(2, 0, dtype=torch.int64)
    if num_rows:
        expected = state.record(staged, Sampled(tokens=tokens, is_valid=is_valid))
    assert torch.equal(noted, expected)
    assert torch.equal(finished.cpu(), state.finished)
    assert torch.equal(last_tokens.cpu(), state.last_tokens)
    if num_rows == MAX_SLOTS:
        assert {NO_TOKEN, INVALID_TOKEN} < set(noted[0].tolist())


def test_columns_of_other_sizes_are_refused() -> None:
    four, five = torch.zeros(4, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)
    ends = SampledEnds(slots=four, positions=four, max_tokens=four, stop_ids=four.view(4, 1))
    with pytest.raises(ValueError, match="4 rows of stop ids"):
        note_tokens(ends, five, five > 0, four > 0, four)


def launch_all() -> None:
    """Requests with up to 16 stop ids, and with more."""
    for width in (4, 32):
        column, flags = empty(8, dtype=torch.int64), empty(8, dtype=torch.bool)
        stop_ids = empty(8, width, dtype=torch.int64)
        ends = SampledEnds(slots=column, positions=column, max_tokens=column, stop_ids=stop_ids)
        note_tokens(ends, column, flags, flags, column)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
