"""Owns the runner's check of a batch before anything changes; pure, knows no tensors.

The scheduler's builder guarantees these; a breach here is a defect in planning, and the batch's
requests end rather than corrupt another request's memory.
"""

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    RunnerLimits,
    ScheduleBatch,
)
from mizzen_worker.contracts.errors import StepError


def _slot_problem(slot: int, limits: RunnerLimits) -> str | None:
    return None if 1 <= slot <= limits.max_slots else f"slot {slot} is not in 1..{limits.max_slots}"


def _row_problem(row: ExtendRow, limits: RunnerLimits) -> str | None:
    if row.start < 0 or row.num_new < 1 or row.start + row.num_new > limits.context_length:
        return (
            f"positions {row.start} to {row.start + row.num_new} are not within the context "
            f"of {limits.context_length} tokens"
        )
    if len(row.token_ids) != row.num_new:
        return f"{len(row.token_ids)} token ids for {row.num_new} positions"
    if row.token_ids.min() < 0 or row.token_ids.max() >= limits.vocab_size:
        return f"a token id is outside the vocabulary of {limits.vocab_size}"
    return None


def _write_problem(write: PageWrite, limits: RunnerLimits) -> str | None:
    max_pages = -(-limits.context_length // limits.page_size)
    if write.first_page < 0 or write.first_page + len(write.pages) > max_pages:
        return (
            f"page writes end at {write.first_page + len(write.pages)}, the table has {max_pages}"
        )
    if len(write.pages) and (np.min(write.pages) < 1 or np.max(write.pages) > limits.num_pages):
        return f"a page is not in 1..{limits.num_pages}"
    return None


def _decode_problems(decodes: DecodeRows, limits: RunnerLimits) -> list[str]:
    """Look at all rows at once, and one by one only where something is wrong."""
    slots, starts = decodes.slots, decodes.starts
    if len(slots) != len(starts):
        return [f"{len(slots)} slots and {len(starts)} positions of decode rows"]
    is_sound = (slots >= 1) & (slots <= limits.max_slots)
    is_sound &= (starts >= 0) & (starts < limits.context_length)
    return [
        f"decode row of slot {slots[row]} (slots 1..{limits.max_slots}) at position {starts[row]} "
        f"(context of {limits.context_length} tokens)"
        for row in np.flatnonzero(~is_sound).tolist()
    ]


def require_sound(batch: ScheduleBatch, limits: RunnerLimits) -> None:
    """Raise ``StepError`` naming every breach of the contract of ``ScheduleBatch``."""
    problems: list[str] = []
    for init in batch.slot_inits:
        problem = _slot_problem(init.slot, limits)
        problems += [] if problem is None else [problem]
    for write in batch.page_writes:
        problem = _slot_problem(write.slot, limits) or _write_problem(write, limits)
        problems += [] if problem is None else [f"slot {write.slot}: {problem}"]
    for row in batch.extends:
        problem = _slot_problem(row.slot, limits) or _row_problem(row, limits)
        problems += [] if problem is None else [f"request {row.request_id}: {problem}"]
    problems += _decode_problems(batch.decodes, limits)
    slots = {row.slot for row in batch.extends}.union(batch.decodes.slots.tolist())
    if len(slots) != batch.num_rows:
        problems.append("two rows have the same slot")
    if problems:
        message = f"step {batch.step}: {'; '.join(problems)}"
        raise StepError(message)
