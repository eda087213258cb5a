"""Owns the translation of a plan into the ``ScheduleBatch`` that runners execute; pure.

It checks the part of the batch contract that it can see: distinct slots, and pages up to the last
position of every row.
"""

import numpy as np

from mizzen_worker.contracts.batch import ExtendRow, PageWrite, ScheduleBatch, SlotInit
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.scheduler.planner import Plan, PlannedRow
from mizzen_worker.scheduler.slot_book import SlotBook


def build_batch(
    plan: Plan,
    *,
    step: int,
    page_writes: tuple[PageWrite, ...],
    eos_token_ids: tuple[TokenId, ...],
    book: SlotBook,
) -> ScheduleBatch:
    """Translate; raises ``InvariantError`` before anything could run on wrong pages."""
    _require_sound(plan, book)
    return ScheduleBatch(
        step=step,
        extends=tuple(map(_extend_row, plan.extends)),
        decodes=plan.decodes,
        slot_inits=tuple(_slot_init(row, eos_token_ids) for row in plan.extends if row.is_entering),
        page_writes=page_writes,
    )


def _extend_row(row: PlannedRow) -> ExtendRow:
    targets = row.target_start + 1
    return ExtendRow(
        request_id=row.req.request_id,
        slot=row.slot,
        start=row.start,
        num_new=row.num_new,
        token_ids=row.req.tokens(row.start, row.end),
        is_sampled=row.is_sampled,
        target_start=row.target_start if row.num_targets else 0,
        target_ids=row.req.tokens(targets, targets + row.num_targets) if row.num_targets else None,
    )


def _slot_init(row: PlannedRow, eos_token_ids: tuple[TokenId, ...]) -> SlotInit:
    req = row.req
    return SlotInit(
        slot=row.slot,
        sampling=req.sampling,
        num_prompt_tokens=req.num_prompt,
        num_generated_tokens=req.num_output,
        eos_token_ids=() if req.sampling.ignore_eos else eos_token_ids,
        max_tokens=req.max_tokens,
        history=req.tokens(0, req.num_tokens) if req.sampling.has_penalty else None,
    )


def _require_sound(plan: Plan, book: SlotBook) -> None:
    decode_slots = plan.decodes.slots
    slots = np.concatenate([decode_slots, [row.slot for row in plan.extends]]).astype(np.int64)
    if not book.are_distinct(slots):
        raise InvariantError([f"slots {slots.tolist()} of a batch are not distinct"])
    ends = np.concatenate([plan.decodes.starts + 1, [row.end for row in plan.extends]])
    broken = np.flatnonzero(ends > book.num_room[slots]).tolist()
    if broken:
        message = "slot {}: its pages end at {}, before position {}"
        raise InvariantError(
            [
                message.format(slots[row], book.num_room[slots[row]], int(ends[row]) - 1)
                for row in broken
            ]
        )
