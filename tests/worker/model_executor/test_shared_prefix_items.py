"""Groups become items: all rows where there is room, else those that save most."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.batch import DecodeRows, ExtendRow, PrefixGroup, RunnerLimits
from mizzen_worker.contracts.ids import RequestId, SlotIndex
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS
from mizzen_worker.model_executor.device_link import HostLink, StepPack
from mizzen_worker.model_executor.pass_inputs import pack_pass, unpack_pass
from mizzen_worker.model_executor.shared_prefix_items import num_shared_items, shared_work_items
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.step_passes import ModelPass

GROUPS = st.lists(st.tuples(st.integers(0, 3), st.integers(2, 100), st.integers(1, 9)), max_size=6)


def placed(parts: list[tuple[int, int, int]]) -> tuple[tuple[PrefixGroup, ...], int]:
    """(rows left out before, rows, tokens) as groups one after the other; and all rows."""
    groups, first = [], 0
    for gap, count, tokens in parts:
        groups.append(PrefixGroup(first=first + gap, count=count, num_tokens=tokens))
        first += gap + count
    return tuple(groups), first + 1


@given(parts=GROUPS, spare=st.integers(0, 3))
def test_every_row_of_a_group_is_in_one_item(parts: list[tuple[int, int, int]], spare: int) -> None:
    groups, num_rows = placed(parts)
    max_items = num_shared_items(groups) + spare
    work = shared_work_items(groups, num_rows, max_items)
    assert work.items.shape == (max_items, 3)
    assert not work.items[work.num_items :].any()
    assert work.items[:, 1].max(initial=0) <= SHARED_ITEM_ROWS
    covered = np.zeros(num_rows, dtype=np.int32)
    for first, count, tokens in work.items[: work.num_items].tolist():
        assert count > 0
        assert not covered[first : first + count].any()
        covered[first : first + count] = tokens
    wanted = np.zeros(num_rows, dtype=np.int32)
    for group in groups:
        wanted[group.first : group.first + group.count] = group.num_tokens
    assert np.array_equal(covered, wanted)
    assert np.array_equal(work.row_tokens, wanted)
    words = work.words()
    assert words[0] == work.num_items
    assert np.array_equal(words[1 : 1 + 3 * max_items], work.items.ravel())
    assert np.array_equal(words[1 + 3 * max_items :], wanted)


@given(parts=GROUPS, max_items=st.integers(0, 4))
def test_without_room_those_that_save_most_are_kept(
    parts: list[tuple[int, int, int]], max_items: int
) -> None:
    groups, num_rows = placed(parts)
    everything = shared_work_items(groups, num_rows, num_shared_items(groups))
    work = shared_work_items(groups, num_rows, max_items)
    savings = sorted(((items[1] - 1) * items[2] for items in everything.items), reverse=True)
    found = [(items[1] - 1) * items[2] for items in work.items[: work.num_items]]
    assert sorted(found, reverse=True) == savings[:max_items]
    rows = {row for first, count, _ in work.items.tolist() for row in range(first, first + count)}
    assert rows == set(np.flatnonzero(work.row_tokens).tolist())


def test_a_pass_brings_the_items_of_its_decode_rows() -> None:
    limits = RunnerLimits(max_slots=8, num_pages=40, page_size=4, context_length=64, vocab_size=10)
    device = torch.device("cpu")
    extend = ExtendRow(
        request_id=RequestId("r"),
        slot=SlotIndex(7),
        start=0,
        num_new=3,
        token_ids=np.array([1, 2, 3], dtype=np.int32),
        is_sampled=True,
    )
    slots, starts = np.arange(1, 6, dtype=np.int32), np.full(5, 20, dtype=np.int32)
    for groups in ((), (PrefixGroup(first=1, count=3, num_tokens=8),)):
        decodes = DecodeRows(slots=slots, starts=starts, groups=groups)
        part = ModelPass(extends=(extend,), origins=(0,), decodes=decodes)
        pack = StepPack()
        inputs = pack_pass(pack, part, prefix="0.", page_size=limits.page_size)
        staged = pack.unpack(HostLink().upload(pack.words()))
        batch = unpack_pass(inputs, staged, SlotState(limits, device), limits.page_size)
        found = batch.shared_prefixes
        if not groups:
            assert found is None
            continue
        assert found is not None
        assert found.first_row == 1
        assert found.num_items.tolist() == [1]
        assert found.items.tolist() == [[1, 3, 8]]
        assert found.row_tokens.tolist() == [0, 8, 8, 8, 0]
