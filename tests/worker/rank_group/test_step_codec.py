"""What travels is the batch itself, whatever is in it."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    PrefixGroup,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import RequestId, SlotIndex
from mizzen_worker.contracts.rank_messages import Step
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.ipc.codec import to_follower_codec
from mizzen_worker.rank_group.step_codec import batch_of, step_of

NUMBERS = st.integers(0, 2**31 - 1)
SLOTS = NUMBERS.map(SlotIndex)
ARRAYS = st.lists(st.integers(-2, 2**31 - 1), max_size=5).map(lambda v: np.array(v, np.int32))
SAMPLING = st.builds(
    SamplingParams,
    max_new_tokens=NUMBERS,
    seed=st.integers(0, 2**63),
    temperature=st.floats(0, 9),
    logit_bias=st.lists(st.tuples(NUMBERS, st.floats(-9, 9)), max_size=2).map(tuple),
    stop_token_ids=st.lists(NUMBERS, max_size=2).map(tuple),
    logprobs=st.none() | st.builds(LogprobParams, num_top=NUMBERS),
)
BATCHES = st.builds(
    ScheduleBatch,
    step=NUMBERS,
    extends=st.lists(
        st.builds(
            ExtendRow,
            request_id=st.text(max_size=3).map(RequestId),
            slot=SLOTS,
            start=NUMBERS,
            num_new=NUMBERS,
            token_ids=ARRAYS,
            is_sampled=st.booleans(),
            target_start=NUMBERS,
            target_ids=st.none() | ARRAYS,
        ),
        max_size=2,
    ).map(tuple),
    decodes=st.builds(
        DecodeRows,
        slots=ARRAYS,
        starts=ARRAYS,
        groups=st.lists(
            st.builds(PrefixGroup, first=NUMBERS, count=NUMBERS, num_tokens=NUMBERS), max_size=2
        ).map(tuple),
    ),
    slot_inits=st.lists(
        st.builds(
            SlotInit,
            slot=SLOTS,
            sampling=SAMPLING,
            num_prompt_tokens=NUMBERS,
            num_generated_tokens=NUMBERS,
            eos_token_ids=st.lists(NUMBERS, max_size=2).map(tuple),
            max_tokens=NUMBERS,
            history=st.none() | ARRAYS,
        ),
        max_size=2,
    ).map(tuple),
    page_writes=st.lists(
        st.builds(PageWrite, slot=SLOTS, first_page=NUMBERS, pages=ARRAYS), max_size=2
    ).map(tuple),
)


def plain(value: object) -> object:
    """Something that compares by value; no field of a batch is left out."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


@given(BATCHES)
def test_a_batch_arrives_as_it_was(batch: ScheduleBatch) -> None:
    codec = to_follower_codec()
    step = codec.decode(codec.encode(step_of(batch, num_settled=0)))
    assert isinstance(step, Step)
    assert plain(batch_of(step)) == plain(batch)


def test_half_a_number_is_refused() -> None:
    empty = np.array([], np.int32)
    batch = ScheduleBatch(
        step=1,
        extends=(),
        decodes=DecodeRows(slots=empty, starts=empty),
        slot_inits=(),
        page_writes=(),
    )
    with pytest.raises(WireError, match="step 1 holds an array that is no array of int32"):
        batch_of(structs.replace(step_of(batch, num_settled=0), slots=b"123"))
