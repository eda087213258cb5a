"""A staged prefill equals the eager path's tensors, filled up: entries, pages, sinks, sizes."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    RunnerLimits,
    SlotInit,
)
from mizzen_worker.contracts.ids import RequestId, SlotIndex
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.kernels.gpu.stage_prefill import PrefillTensors, PrefillWords, stage_prefill
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.device_link import StepPack
from mizzen_worker.model_executor.pass_inputs import PassInputs, pack_pass, unpack_pass
from mizzen_worker.model_executor.prefill_graphs import words_of
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.step_passes import ModelPass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONTEXT = 96
MAX_SLOTS = 30
VOCAB = 90


def limits_of(page_size: int) -> RunnerLimits:
    return RunnerLimits(
        max_slots=MAX_SLOTS,
        num_pages=5000,
        page_size=page_size,
        context_length=CONTEXT,
        vocab_size=VOCAB,
    )


def random_state(limits: RunnerLimits, dice: np.random.Generator) -> tuple[SlotState, SlotState]:
    """Two alike, all of whose requests but a few have ended."""
    states = SlotState(limits, DEVICE), SlotState(limits, DEVICE)
    table = torch.from_numpy(dice.integers(1, limits.num_pages, tuple(states[0].page_table.shape)))
    last = torch.from_numpy(dice.integers(0, VOCAB, MAX_SLOTS))
    ended = torch.from_numpy(dice.random(MAX_SLOTS) < 0.6)
    for state in states:
        state.page_table[1:] = table[1:]
        state.last_tokens[1:] = last
        state.finished[1:] = ended
    return states


def empty_tensors(tokens: int, rows: int) -> PrefillTensors:
    """Of a step before: nothing may stay of it."""

    def stale(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((size,), -77, dtype=dtype, device=DEVICE)

    return PrefillTensors(
        token_ids=stale(tokens, torch.int64),
        positions=stale(tokens, torch.int64),
        kv_locations=stale(tokens, torch.int64),
        row_slots=stale(rows, torch.int64),
        wanted=stale(rows, torch.int64),
        row_starts=stale(rows + 1, torch.int32),
        row_lengths=stale(rows, torch.int32),
    )


def random_pass(dice: np.random.Generator, num_extends: int, num_decodes: int) -> ModelPass:
    slots = (dice.permutation(MAX_SLOTS)[: num_extends + num_decodes] + 1).astype(np.int32)
    extends = []
    for slot in slots[:num_extends].tolist():
        start, num_new = int(dice.integers(0, 40)), int(dice.integers(1, 40))
        extends.append(
            ExtendRow(
                request_id=RequestId(str(slot)),
                slot=SlotIndex(slot),
                start=start,
                num_new=num_new,
                token_ids=dice.integers(0, VOCAB, num_new).astype(np.int32),
                is_sampled=bool(dice.random() < 0.7),
            )
        )
    starts = dice.integers(0, CONTEXT, num_decodes).astype(np.int32)
    decodes = DecodeRows(slots=slots[num_extends:], starts=starts)
    return ModelPass(extends=tuple(extends), origins=tuple(range(num_extends)), decodes=decodes)


def entries_of(part: ModelPass, page_size: int) -> tuple[list[SlotInit], list[PageWrite]]:
    """All extends enter, and one decode row does; every new page of theirs is written."""
    slots = [row.slot for row in part.extends] + part.decodes.slots[:1].tolist()
    inits = [
        SlotInit(
            slot=SlotIndex(slot),
            sampling=SamplingParams(max_new_tokens=4, seed=1),
            num_prompt_tokens=4,
            num_generated_tokens=0,
            eos_token_ids=(),
            max_tokens=40,
        )
        for slot in slots
    ]
    writes = []
    for number, row in enumerate(part.extends):
        count = -(-(row.start + row.num_new) // page_size)
        pages = np.arange(1000 + 100 * number, 1000 + 100 * number + count, dtype=np.int32)
        writes.append(PageWrite(slot=row.slot, first_page=0, pages=pages))
    return inits, writes


def check(
    tensors: PrefillTensors, expected: ForwardBatch, inputs: PassInputs, page_size: int
) -> None:
    num_tokens, num_rows = expected.num_tokens, expected.num_rows
    tokens, rows = len(tensors.token_ids), len(tensors.row_slots)
    for found, wanted in (
        (tensors.token_ids, expected.token_ids),
        (tensors.positions, expected.positions),
        (tensors.kv_locations, expected.kv_locations),
        (tensors.row_slots, expected.row_slots),
        (tensors.wanted, expected.sampled_tokens),
        (tensors.row_starts, expected.device_row_starts),
        (tensors.row_lengths, expected.device_row_lengths),
    ):
        assert torch.equal(found[: len(wanted)], wanted)
    assert len(expected.sampled_tokens) == inputs.num_wanted
    for filled in (tensors.token_ids, tensors.positions):
        assert (filled[num_tokens:] == 0).all()
    assert ((tensors.kv_locations[num_tokens:] // page_size) == 0).all()
    assert (tensors.wanted[inputs.num_wanted :] == 0).all()
    assert (tensors.row_slots[num_rows:] == 0).all()
    assert (tensors.row_starts[num_rows + 1 :] == tokens).all()
    lengths = [tokens - num_tokens] + [0] * (rows - num_rows - 1)
    assert tensors.row_lengths[num_rows:].tolist() == lengths


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("num_extends", "num_decodes"), [(1, 0), (3, 9), (20, 1)])
@pytest.mark.parametrize("has_entries", [True, False])
def test_equals_the_eager_path(
    page_size: int, num_extends: int, num_decodes: int, *, has_entries: bool
) -> None:
    dice = np.random.default_rng(page_size * 100 + num_extends)
    limits = limits_of(page_size)
    state, expected_state = random_state(limits, dice)
    part = random_pass(dice, num_extends, num_decodes)
    inits, writes = entries_of(part, page_size) if has_entries else ([], [])
    pack = StepPack()
    pack.add_wides("seeds", np.array([1, 2], dtype=np.int64))
    state.pack_changes(pack, inits, writes)
    inputs = pack_pass(pack, part, prefix="0.", page_size=page_size)
    words = torch.from_numpy(pack.words()).to(DEVICE)
    staged = pack.unpack(words)
    expected_state.change(staged)
    expected = unpack_pass(inputs, staged, expected_state, page_size)

    for room in (0, 1300):
        tensors = empty_tensors(expected.num_tokens + room, max(expected.num_rows + 1, 40))
        stage_prefill(
            words_of(inputs, pack, words),
            state.page_table,
            state.last_tokens,
            state.finished,
            tensors,
            page_size=page_size,
        )
        assert torch.equal(state.page_table, expected_state.page_table)
        assert torch.equal(state.finished, expected_state.finished)
        check(tensors, expected, inputs, page_size)


def test_a_step_without_room_is_refused() -> None:
    dice = np.random.default_rng(1)
    state, _ = random_state(limits_of(4), dice)
    part, pack = random_pass(dice, 3, 0), StepPack()
    inputs = pack_pass(pack, part, prefix="", page_size=4)
    words = words_of(inputs, pack, torch.from_numpy(pack.words()).to(DEVICE))
    slots = (state.page_table, state.last_tokens, state.finished)
    with pytest.raises(ValueError, match="3 rows"):
        stage_prefill(words, *slots, empty_tensors(500, 3), page_size=4)
    crooked = dataclasses.replace(empty_tensors(500, 8), positions=state.last_tokens)
    with pytest.raises(ValueError, match="different sizes"):
        stage_prefill(words, *slots, crooked, page_size=4)


def launch_all() -> None:
    """Page tables of the benchmarks' contexts."""
    names = [field.name for field in dataclasses.fields(PrefillWords) if field.name != "words"]
    words = PrefillWords(words=empty(4096, dtype=torch.int32), **dict.fromkeys(names, 3))
    index, word = empty(100, dtype=torch.int64), empty(100, dtype=torch.int32)
    tensors = PrefillTensors(
        token_ids=index,
        positions=index,
        kv_locations=index,
        row_slots=index[:9],
        wanted=index[:9],
        row_starts=word[:10],
        row_lengths=word[:9],
    )
    for num_pages, page_size in ((640, 64), (2049, 16)):
        table = empty(513, num_pages, dtype=torch.int32)
        stage_prefill(words, table, index, index.bool(), tensors, page_size=page_size)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
