"""Owns the translation of a plan into the ``ScheduleBatch`` that runners execute; pure.

It checks the part of the batch contract that it can see: distinct slots, and pages up to the last
position of every row.
"""

from collections.abc import Sequence

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.scheduler.planner import Plan, PlannedRow


def build_batch(
    plan: Plan,
    *,
    step: int,
    page_writes: Sequence[PageWrite],
    eos_token_ids: tuple[TokenId, ...],
    page_size: int,
) -> ScheduleBatch:
    """Translate; raises ``InvariantError`` before anything could run on wrong pages."""
    _require_sound(plan.rows(), page_size)
    return ScheduleBatch(
        step=step,
        extends=tuple(map(_extend_row, plan.extends)),
        decodes=DecodeRows(
            slots=np.array([row.slot for row in plan.decodes], dtype=np.int32),
            starts=np.array([row.req.num_kv for row in plan.decodes], dtype=np.int32),
        ),
        slot_inits=tuple(_slot_init(row, eos_token_ids) for row in plan.extends if row.is_entering),
        page_writes=tuple(page_writes),
    )


def _extend_row(row: PlannedRow) -> ExtendRow:
    req = row.req
    return ExtendRow(
        request_id=req.request_id,
        slot=row.slot,
        start=req.num_kv,
        num_new=row.num_new,
        token_ids=req.tokens(req.num_kv, req.num_kv + row.num_new),
        is_sampled=row.is_sampled,
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
    )


def _require_sound(rows: Sequence[PlannedRow], page_size: int) -> None:
    if len({row.slot for row in rows}) != len(rows):
        raise InvariantError([f"slots {[row.slot for row in rows]} of a batch are not distinct"])
    for row in rows:
        _, lease = row.req.held()
        if row.req.num_kv + row.num_new > lease.num_pages * page_size:
            message = f"slot {row.slot}: {lease.num_pages} pages end before position "
            raise InvariantError([message + str(row.req.num_kv + row.num_new - 1)])
