"""Owns ``ScheduleBatch`` ↔ ``Step``: arrays to bytes and back. Pure; owns no sockets."""

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    Int32Array,
    PageWrite,
    PrefixGroup,
    RunnerLimits,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.rank_messages import PagePlan, RowPlan, Sizes, SlotPlan, Step

_INT32 = np.dtype("<i4")


def step_of(batch: ScheduleBatch, *, num_settled: int) -> Step:
    """Everything of a batch, by value, and how many steps have settled before it."""
    return Step(
        step=batch.step,
        extends=tuple(
            RowPlan(
                request_id=row.request_id,
                slot=row.slot,
                start=row.start,
                num_new=row.num_new,
                token_ids=_bytes_of(row.token_ids),
                is_sampled=row.is_sampled,
                target_start=row.target_start,
                target_ids=None if row.target_ids is None else _bytes_of(row.target_ids),
            )
            for row in batch.extends
        ),
        slots=_bytes_of(batch.decodes.slots),
        starts=_bytes_of(batch.decodes.starts),
        groups=tuple((part.first, part.count, part.num_tokens) for part in batch.decodes.groups),
        slot_inits=tuple(
            SlotPlan(
                slot=init.slot,
                sampling=init.sampling,
                num_prompt_tokens=init.num_prompt_tokens,
                num_generated_tokens=init.num_generated_tokens,
                eos_token_ids=init.eos_token_ids,
                max_tokens=init.max_tokens,
                history=None if init.history is None else _bytes_of(init.history),
            )
            for init in batch.slot_inits
        ),
        page_writes=tuple(
            PagePlan(slot=write.slot, first_page=write.first_page, pages=_bytes_of(write.pages))
            for write in batch.page_writes
        ),
        num_settled=num_settled,
    )


def batch_of(step: Step) -> ScheduleBatch:
    """The batch again, with arrays of its own; raises ``WireError``."""
    try:
        return ScheduleBatch(
            step=step.step,
            extends=tuple(_row_of(row) for row in step.extends),
            decodes=DecodeRows(
                slots=_array_of(step.slots),
                starts=_array_of(step.starts),
                groups=tuple(
                    PrefixGroup(first=first, count=count, num_tokens=num_tokens)
                    for first, count, num_tokens in step.groups
                ),
            ),
            slot_inits=tuple(_init_of(init) for init in step.slot_inits),
            page_writes=tuple(
                PageWrite(
                    slot=write.slot, first_page=write.first_page, pages=_array_of(write.pages)
                )
                for write in step.page_writes
            ),
        )
    except ValueError as error:
        msg = f"step {step.step} holds an array that is no array of int32: {error}"
        raise WireError(msg) from error


def sizes_of(limits: RunnerLimits) -> Sizes:
    """A runner's limits, as they travel."""
    return Sizes(
        max_slots=limits.max_slots,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        context_length=limits.context_length,
        vocab_size=limits.vocab_size,
    )


def _row_of(row: RowPlan) -> ExtendRow:
    return ExtendRow(
        request_id=row.request_id,
        slot=row.slot,
        start=row.start,
        num_new=row.num_new,
        token_ids=_array_of(row.token_ids),
        is_sampled=row.is_sampled,
        target_start=row.target_start,
        target_ids=None if row.target_ids is None else _array_of(row.target_ids),
    )


def _init_of(init: SlotPlan) -> SlotInit:
    return SlotInit(
        slot=init.slot,
        sampling=init.sampling,
        num_prompt_tokens=init.num_prompt_tokens,
        num_generated_tokens=init.num_generated_tokens,
        eos_token_ids=init.eos_token_ids,
        max_tokens=init.max_tokens,
        history=None if init.history is None else _array_of(init.history),
    )


def _bytes_of(values: Int32Array) -> bytes:
    return values.astype(_INT32, copy=False).tobytes()


def _array_of(raw: bytes) -> Int32Array:
    return np.frombuffer(raw, dtype=_INT32).astype(np.int32)
