"""A staged step equals the eager path's tensors: pages entered, sinks, padding, ring, any sizes."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.contracts.batch import DecodeRows, PageWrite, RunnerLimits
from mizzen_worker.kernels.gpu.stage_step import (
    HEADER,
    DrawColumns,
    SlotTensors,
    StagedDraws,
    StagedRows,
    StagedShares,
    StepExtras,
    StepWords,
    stage_step,
)
from mizzen_worker.model_executor.device_link import StepPack
from mizzen_worker.model_executor.pass_inputs import pack_pass, unpack_pass
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.step_passes import ModelPass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLACES = 2
MAX_ROWS = 40
MAX_WRITES = 300
MAX_ITEMS = 11
CONTEXT = 64


def limits_of(page_size: int) -> RunnerLimits:
    return RunnerLimits(
        max_slots=50, num_pages=5000, page_size=page_size, context_length=CONTEXT, vocab_size=90
    )


def random_state(limits: RunnerLimits, dice: np.random.Generator) -> SlotState:
    state = SlotState(limits, DEVICE)
    table = dice.integers(1, limits.num_pages, tuple(state.page_table.shape))
    state.page_table[1:] = torch.from_numpy(table[1:])
    state.last_tokens[1:] = torch.from_numpy(dice.integers(0, 90, limits.max_slots))
    state.finished[1:] = torch.from_numpy(dice.random(limits.max_slots) < 0.3)
    return state


def copy_of(state: SlotState, limits: RunnerLimits) -> SlotState:
    twin = SlotState(limits, DEVICE)
    for name in ("page_table", "last_tokens", "finished"):
        getattr(twin, name).copy_(getattr(state, name))
    return twin


def empty_rows() -> StagedRows:
    return StagedRows(
        **{
            name: torch.full((MAX_ROWS,), -7, dtype=torch.int64, device=DEVICE)
            for name in ("token_ids", "positions", "kv_locations", "row_slots")
        },
        row_lengths=torch.full((MAX_ROWS,), -7, dtype=torch.int32, device=DEVICE),
        current=torch.full((2,), -7, dtype=torch.int32, device=DEVICE),
    )


def ring_of() -> StepWords:
    num_words = HEADER + 3 * (MAX_ROWS + MAX_WRITES + MAX_ITEMS) + 5
    words = torch.full((PLACES, num_words), 1 << 30, dtype=torch.int32)  # Nobody reads the rest.
    return StepWords(
        ring=words.pin_memory() if DEVICE.type == "cuda" else words,
        counter=torch.zeros(1, dtype=torch.int32, device=DEVICE),
        max_rows=MAX_ROWS,
        max_writes=MAX_WRITES,
        max_items=MAX_ITEMS,
    )


def draws_of(dice: np.random.Generator, num_slots: int) -> StagedDraws:
    def columns(count: int) -> DrawColumns:
        reals = [torch.from_numpy(dice.random(count)).float().to(DEVICE) for _ in range(3)]
        return DrawColumns(
            temperatures=reals[0],
            top_p=reals[1],
            min_p=reals[2],
            top_k=torch.from_numpy(dice.integers(0, 99, count)).int().to(DEVICE),
            seeds=torch.from_numpy(dice.integers(-(2**63), 2**63, count)).to(DEVICE),
        )

    positions = torch.zeros(MAX_ROWS, dtype=torch.int64, device=DEVICE)
    return StagedDraws(by_slot=columns(num_slots), by_row=columns(MAX_ROWS), positions=positions)


def fill(
    words: np.ndarray, decodes: DecodeRows, writes: list[tuple[int, int, int]], bucket: int
) -> None:
    num_rows = len(decodes.slots)
    words[:2] = num_rows, len(writes)
    words[HEADER : HEADER + bucket] = 0
    words[HEADER + MAX_ROWS : HEADER + MAX_ROWS + bucket] = 0
    words[HEADER : HEADER + num_rows] = decodes.slots
    words[HEADER + MAX_ROWS : HEADER + MAX_ROWS + num_rows] = decodes.starts
    first = HEADER + 3 * MAX_ROWS
    for column, values in enumerate(zip(*writes, strict=True)):
        at = first + column * MAX_WRITES
        words[at : at + len(writes)] = values


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("num_rows", "bucket", "num_writes"),
    [(1, 1, 1), (1, 2, 0), (5, 8, 5), (17, 24, 140), (40, 40, 300), (33, 40, 129)],
)
def test_equals_the_eager_path(page_size: int, num_rows: int, bucket: int, num_writes: int) -> None:
    dice = np.random.default_rng(page_size * 1000 + num_rows)
    limits = limits_of(page_size)
    state = random_state(limits, dice)
    ring, rows = ring_of(), empty_rows()
    draws = draws_of(dice, limits.max_slots + 1)
    max_pages = state.page_table.shape[1]
    for step in range(PLACES + 2):
        decodes = DecodeRows(
            slots=dice.permutation(limits.max_slots)[:num_rows].astype(np.int32) + 1,
            starts=dice.integers(0, CONTEXT, num_rows).astype(np.int32),
        )
        places = dice.permutation(limits.max_slots * max_pages)[:num_writes]
        writes = [
            (place // max_pages + 1, place % max_pages, int(dice.integers(1, limits.num_pages)))
            for place in places.tolist()
        ]
        # Pages that this step's own rows need are among the written ones.
        slots, starts = decodes.slots.tolist(), decodes.starts.tolist()
        for slot, start in list(zip(slots, starts, strict=True))[: len(writes)]:
            if (slot, start // page_size) not in {write[:2] for write in writes}:
                writes[0] = (slot, start // page_size, writes[0][2])
        expected_state = copy_of(state, limits)
        pack = StepPack()
        expected_state.pack_changes(
            pack,
            (),
            [
                PageWrite(slot=slot, first_page=column, pages=np.array([page], np.int32))
                for slot, column, page in writes
            ],
        )
        inputs = pack_pass(
            pack, ModelPass(extends=(), origins=(), decodes=decodes), prefix="", page_size=page_size
        )
        staged = pack.unpack(torch.from_numpy(pack.words()).to(DEVICE))
        expected_state.change(staged)
        expected = unpack_pass(inputs, staged, expected_state, page_size)

        fill(ring.ring[step % PLACES].numpy(), decodes, writes, bucket)
        stage_step(
            ring,
            SlotTensors(
                page_table=state.page_table,
                last_tokens=state.last_tokens,
                finished=state.finished,
            ),
            rows,
            StepExtras(draws=draws if step % 2 else None),
            num_rows=bucket,
            page_size=page_size,
        )
        assert torch.equal(state.page_table, expected_state.page_table)
        for name, found in (
            ("token_ids", rows.token_ids),
            ("positions", rows.positions),
            ("kv_locations", rows.kv_locations),
            ("row_slots", rows.row_slots),
            ("device_row_lengths", rows.row_lengths),
        ):
            assert torch.equal(found[:num_rows], getattr(expected, name)), name
            assert (found[bucket:] == -7).all(), name
        assert (rows.kv_locations[num_rows:bucket] == 0).all()
        assert (rows.row_slots[num_rows:bucket] == 0).all()
        assert (rows.row_lengths[num_rows:bucket] == 1).all()
        if step % 2:
            taken = rows.row_slots[:bucket]
            for name in dataclasses.fields(DrawColumns):
                found = getattr(draws.by_row, name.name)
                assert torch.equal(found[:bucket], getattr(draws.by_slot, name.name)[taken])
            assert torch.equal(draws.positions[:bucket], rows.positions[:bucket] + 1)
        assert rows.current.tolist() == [step % PLACES, num_rows]
        assert ring.counter.item() == step + 1


@pytest.mark.parametrize("num_items", [0, 1, MAX_ITEMS])
def test_shared_prefixes_are_staged(num_items: int) -> None:
    dice = np.random.default_rng(num_items)
    state, ring, rows, bucket = SlotState(limits_of(4), DEVICE), ring_of(), empty_rows(), 24
    shares = StagedShares(
        num_items=torch.zeros(1, dtype=torch.int32, device=DEVICE),
        items=torch.full((MAX_ITEMS, 3), -7, dtype=torch.int32, device=DEVICE),
        row_tokens=torch.full((MAX_ROWS,), -7, dtype=torch.int32, device=DEVICE),
    )
    words = ring.ring[0].numpy()
    slots = np.arange(1, 21, dtype=np.int32)
    fill(words, DecodeRows(slots=slots, starts=slots), [(1, 2, 3)], bucket)
    words[2] = num_items
    words[HEADER + 2 * MAX_ROWS :][:bucket] = dice.integers(0, 64, bucket)
    words[ring.first_item : ring.num_words] = dice.integers(0, 64, 3 * MAX_ITEMS)
    tensors = SlotTensors(
        page_table=state.page_table, last_tokens=state.last_tokens, finished=state.finished
    )
    extras = StepExtras(shares=shares)
    stage_step(ring, tensors, rows, extras, num_rows=bucket, page_size=4)
    assert shares.num_items.tolist() == [num_items]
    items = words[ring.first_item :][: 3 * num_items].reshape(-1, 3)
    assert shares.items[:num_items].tolist() == items.tolist()
    assert (shares.items[num_items:] == -7).all()
    shared = words[HEADER + 2 * MAX_ROWS :][:bucket]
    assert shares.row_tokens[:bucket].tolist() == shared.tolist()
    assert (shares.row_tokens[bucket:] == -7).all()
    assert state.page_table[1, 2] == 3


def test_the_count_may_come_round() -> None:
    state, ring, rows = SlotState(limits_of(4), DEVICE), ring_of(), empty_rows()
    slots = SlotTensors(
        page_table=state.page_table, last_tokens=state.last_tokens, finished=state.finished
    )
    ring.counter.fill_(2**31 - 1)
    nobody = np.empty(0, dtype=np.int32)
    for place in (1, 0, 1):
        fill(ring.ring[place].numpy(), DecodeRows(slots=nobody, starts=nobody), [], 4)
        stage_step(ring, slots, rows, StepExtras(), num_rows=4, page_size=4)
        assert rows.current.tolist() == [place, 0]


def test_a_step_without_rows_is_padding_alone() -> None:
    state, ring, rows = SlotState(limits_of(4), DEVICE), ring_of(), empty_rows()
    nobody = np.empty(0, dtype=np.int32)
    fill(ring.ring[0].numpy(), DecodeRows(slots=nobody, starts=nobody), [], 4)
    slots = SlotTensors(
        page_table=state.page_table, last_tokens=state.last_tokens, finished=state.finished
    )
    stage_step(ring, slots, rows, StepExtras(), num_rows=4, page_size=4)
    assert rows.kv_locations[:5].tolist() == [0, 0, 0, 0, -7]
    assert rows.current.tolist() == [0, 0]
    assert not state.page_table.any()


def test_rows_beyond_the_words_are_refused() -> None:
    state = SlotState(limits_of(4), DEVICE)
    slots = SlotTensors(
        page_table=state.page_table, last_tokens=state.last_tokens, finished=state.finished
    )
    with pytest.raises(ValueError, match="41 rows"):
        stage_step(ring_of(), slots, empty_rows(), StepExtras(), num_rows=41, page_size=4)


def launch_all() -> None:
    """The smallest and the largest bucket."""
    index, word = empty(1024, dtype=torch.int64), empty(1024, dtype=torch.int32)
    real = empty(1024, dtype=torch.float32)
    words = StepWords(
        ring=empty(4, 8192, dtype=torch.int32),
        counter=word[:1],
        max_rows=1024,
        max_writes=1088,
        max_items=170,
    )
    slots = SlotTensors(
        page_table=empty(1024, 2560, dtype=torch.int32), last_tokens=index, finished=index.bool()
    )
    rows = StagedRows(
        token_ids=index,
        positions=index,
        kv_locations=index,
        row_slots=index,
        row_lengths=word,
        current=word[:2],
    )
    columns = DrawColumns(temperatures=real, top_p=real, min_p=real, top_k=word, seeds=index)
    all_extras = StepExtras(
        draws=StagedDraws(by_slot=columns, by_row=columns, positions=index),
        shares=StagedShares(
            num_items=word[:1], items=empty(170, 3, dtype=torch.int32), row_tokens=word
        ),
    )
    for num_rows, extras in ((16, all_extras), (1024, StepExtras()), (1024, all_extras)):
        stage_step(words, slots, rows, extras, num_rows=num_rows, page_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
