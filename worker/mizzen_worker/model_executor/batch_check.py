"""Owns the runner's check of a batch before anything changes; pure, knows no tensors.

The scheduler's builder guarantees these; a breach here is a defect in planning, and the batch's
requests end rather than corrupt another request's memory.
"""

import numpy as np

from mizzen_worker.contracts.batch import BatchRow, PageWrite, RunnerLimits, ScheduleBatch
from mizzen_worker.contracts.errors import StepError


def _slot_problem(slot: int, limits: RunnerLimits) -> str | None:
    return None if 1 <= slot <= limits.max_slots else f"slot {slot} is not in 1..{limits.max_slots}"


def _row_problem(row: BatchRow, limits: RunnerLimits) -> str | None:
    if row.start < 0 or row.num_new < 1 or row.start + row.num_new > limits.context_length:
        return (
            f"positions {row.start} to {row.start + row.num_new} are not within the context "
            f"of {limits.context_length} tokens"
        )
    if row.token_ids is None:
        return None if row.num_new == 1 else f"a decode row has num_new {row.num_new}, not 1"
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


def require_sound(batch: ScheduleBatch, limits: RunnerLimits) -> None:
    """Raise ``StepError`` naming every breach of the contract of ``ScheduleBatch``."""
    problems: list[str] = []
    for init in batch.slot_inits:
        problem = _slot_problem(init.slot, limits)
        problems += [] if problem is None else [problem]
    for write in batch.page_writes:
        problem = _slot_problem(write.slot, limits) or _write_problem(write, limits)
        problems += [] if problem is None else [f"slot {write.slot}: {problem}"]
    for row in batch.rows:
        problem = _slot_problem(row.slot, limits) or _row_problem(row, limits)
        problems += [] if problem is None else [f"request {row.request_id}: {problem}"]
    if len({row.slot for row in batch.rows}) != len(batch.rows):
        problems.append("two rows have the same slot")
    if problems:
        message = f"step {batch.step}: {'; '.join(problems)}"
        raise StepError(message)
