"""Recorded steps equal ``SlotState.record``: ends, stop ids, bad rows, ended rows, padding."""

import numpy as np
import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.record_step import RecordTensors, record_best, record_chosen
from mizzen_worker.model_executor.device_link import StagedStep
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.sampler.sampler import Sampled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLACES = 3
MAX_SLOTS = 50
NUM_STOPS = 16
VOCAB = 40
LIMITS = RunnerLimits(
    max_slots=MAX_SLOTS, num_pages=9, page_size=4, context_length=64, vocab_size=VOCAB
)


class Case:
    """A random state of all slots, and rows of it; ``num_rows`` of ``bucket`` are no padding."""

    def __init__(self, num_rows: int, bucket: int, seed: int) -> None:
        dice = np.random.default_rng(seed)
        self.num_rows, self.bucket = num_rows, bucket
        self.state = SlotState(LIMITS, DEVICE)
        self.expected_state = SlotState(LIMITS, torch.device("cpu"))  # There it is plain torch.
        ended = torch.from_numpy(dice.random(MAX_SLOTS) < 0.25)
        last = torch.from_numpy(dice.integers(0, VOCAB, MAX_SLOTS))
        for state in (self.state, self.expected_state):
            state.finished[1:] = ended
            state.last_tokens[1:] = last
        stop_ids = np.full((MAX_SLOTS + 1, NUM_STOPS), -1)
        for slot in range(1, MAX_SLOTS + 1):
            count = int(dice.integers(0, NUM_STOPS + 1))
            stop_ids[slot, :count] = dice.permutation(VOCAB)[:count]
        slots = np.zeros(bucket, dtype=np.int64)
        slots[:num_rows] = dice.permutation(MAX_SLOTS)[:num_rows] + 1
        positions = np.zeros(bucket, dtype=np.int64)
        positions[:num_rows] = dice.integers(0, 30, num_rows)
        self.place = int(dice.integers(0, PLACES))
        outcome = torch.full((PLACES, 64), -9, dtype=torch.int64)
        self.tensors = RecordTensors(
            row_slots=torch.from_numpy(slots).to(DEVICE),
            positions=torch.from_numpy(positions).to(DEVICE),
            current=torch.tensor([self.place, num_rows], dtype=torch.int32, device=DEVICE),
            finished=self.state.finished,
            last_tokens=self.state.last_tokens,
            max_tokens=torch.from_numpy(dice.integers(10, 35, MAX_SLOTS + 1)).int().to(DEVICE),
            stop_ids=torch.from_numpy(stop_ids).int().to(DEVICE),
            outcome=outcome.pin_memory() if DEVICE.type == "cuda" else outcome,
        )

    def check(self, sampled: Sampled) -> None:
        """``sampled`` [num_rows]."""
        tensors, slots = self.tensors, self.tensors.row_slots[: self.num_rows]
        max_tokens = tensors.max_tokens[slots].long()
        longs = {
            "sampled_slots": slots,
            "integers": torch.stack([torch.zeros_like(max_tokens), max_tokens]).flatten(),
            "sample_positions": tensors.positions[: self.num_rows] + 1,
            "stop_ids": tensors.stop_ids[slots].long().flatten(),
        }
        longs = {name: values.cpu() for name, values in longs.items()}
        staged = StagedStep(longs=longs, integers={}, reals={})
        expected = torch.empty(2, 0, dtype=torch.int64)
        if self.num_rows:
            on_host = Sampled(tokens=sampled.tokens.cpu(), is_valid=sampled.is_valid.cpu())
            expected = self.expected_state.record(staged, on_host)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        words = tensors.outcome[self.place].view(torch.int32).view(-1, 2)
        assert torch.equal(words[: self.num_rows].t().long(), expected)
        untouched = tensors.outcome.clone()
        untouched[self.place, : self.num_rows] = -9
        assert (untouched == -9).all()
        assert torch.equal(self.state.finished.cpu(), self.expected_state.finished)
        assert torch.equal(self.state.last_tokens.cpu(), self.expected_state.last_tokens)


SIZES = [(1, 1), (1, 2), (5, 8), (40, 48), (0, 2)]


@pytest.mark.parametrize(("num_rows", "bucket"), SIZES)
@pytest.mark.parametrize("num_blocks", [1, 5, 300, 33_000])
def test_the_best_of_the_blocks_is_recorded(num_rows: int, bucket: int, num_blocks: int) -> None:
    case = Case(num_rows, bucket, seed=num_rows * 10 + num_blocks)
    generator = torch.Generator().manual_seed(num_blocks)
    values = torch.randint(-3, 3, (bucket, num_blocks), generator=generator).float()  # Many ties.
    # Blocks of up to 3 ids, in their order: more than the test's vocabulary where there are many.
    firsts = torch.arange(0, 3 * num_blocks, 3)
    ids = (firsts + torch.randint(0, 3, (bucket, num_blocks), generator=generator)).int()
    for row, spoiled in enumerate((float("nan"), float("inf"), float("-inf"))):
        if row < bucket - 1:
            values[row, num_blocks // 2] = spoiled
    if bucket > 4:
        values[3] = float("-inf")
    record_best(values.to(DEVICE), ids.to(DEVICE), case.tensors)
    best = values.amax(-1)
    lowest = torch.where(values == best[:, None], ids.long(), 3 * num_blocks).amin(-1)
    sampled = Sampled(tokens=lowest[:num_rows], is_valid=best[:num_rows].isfinite())
    case.check(Sampled(tokens=sampled.tokens.to(DEVICE), is_valid=sampled.is_valid.to(DEVICE)))


@pytest.mark.parametrize(("num_rows", "bucket"), SIZES)
def test_chosen_tokens_are_recorded(num_rows: int, bucket: int) -> None:
    case = Case(num_rows, bucket, seed=num_rows)
    generator = torch.Generator().manual_seed(bucket)
    tokens = torch.randint(0, VOCAB, (bucket,), generator=generator).to(DEVICE)
    is_valid = (torch.rand(bucket, generator=generator) < 0.8).to(DEVICE)
    record_chosen(tokens, is_valid, case.tensors)
    case.check(Sampled(tokens=tokens[:num_rows], is_valid=is_valid[:num_rows]))


def test_more_rows_than_there_is_room_for_are_refused() -> None:
    case = Case(3, 4, seed=1)
    tokens = torch.zeros(5, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="5 rows"):
        record_chosen(tokens, tokens > 0, case.tensors)


def launch_all() -> None:
    """Vocabularies of the benchmarks' models in blocks of any size, and chosen tokens."""
    index, word = empty(512, dtype=torch.int64), empty(512, dtype=torch.int32)
    flags = empty(512, dtype=torch.bool)
    tensors = RecordTensors(
        row_slots=index,
        positions=index,
        current=empty(2, dtype=torch.int32),
        finished=flags,
        last_tokens=index,
        max_tokens=word,
        stop_ids=empty(512, NUM_STOPS, dtype=torch.int32),
        outcome=empty(4, 512, dtype=torch.int64),
    )
    record_chosen(index, flags, tensors, is_dependent=True)
    for vocab_size in {shape.vocab_size for shape in benchmark_models.ALL}:
        for width in (16, 64, 128, 256):
            values = empty(512, -(-vocab_size // width), dtype=torch.float32)
            ids = torch.empty_like(values, dtype=torch.int32)
            record_best(values, ids, tensors, is_dependent=True)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
