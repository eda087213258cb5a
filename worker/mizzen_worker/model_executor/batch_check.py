"""Owns the runner's check of a batch before anything changes; pure, knows no tensors.

The scheduler's builder guarantees these; a breach here is a defect in planning, and the batch's
requests end rather than corrupt another request's memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    Int32Array,
    PageWrite,
    RunnerLimits,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.errors import StepError
from mizzen_worker.memory.sizing import pages_for_tokens


def _slot_problem(slot: int, limits: RunnerLimits) -> str | None:
    return None if 1 <= slot <= limits.max_slots else f"slot {slot} is not in 1..{limits.max_slots}"


def _ids_problem(ids: Int32Array, what: str, limits: RunnerLimits) -> str | None:
    if len(ids) and (ids.min() < 0 or ids.max() >= limits.vocab_size):
        return f"{what} is outside the vocabulary of {limits.vocab_size}"
    return None


def _init_problem(init: SlotInit, limits: RunnerLimits) -> str | None:
    sampling, num_known = init.sampling, init.num_prompt_tokens + init.num_generated_tokens
    if any(not 0 <= token < limits.vocab_size for token, _ in sampling.logit_bias):
        return f"an id of the logit bias is outside the vocabulary of {limits.vocab_size}"
    if not sampling.has_penalty:
        return None
    if init.history is None or len(init.history) != num_known:
        num_given = 0 if init.history is None else len(init.history)
        return f"penalties need the {num_known} known ids, {num_given} are given"
    return _ids_problem(init.history, "an id of the history", limits)


def _row_problem(row: ExtendRow, limits: RunnerLimits) -> str | None:
    if row.start < 0 or row.num_new < 1 or row.start + row.num_new > limits.context_length:
        return (
            f"positions {row.start} to {row.start + row.num_new} are not within the context "
            f"of {limits.context_length} tokens"
        )
    if len(row.token_ids) != row.num_new:
        return f"{len(row.token_ids)} token ids for {row.num_new} positions"
    return _ids_problem(row.token_ids, "a token id", limits) or _target_problem(row, limits)


def _target_problem(row: ExtendRow, limits: RunnerLimits) -> str | None:
    if row.target_ids is None:
        return None
    end = row.start + row.num_new - int(row.is_sampled)
    first, after = row.target_start, row.target_start + len(row.target_ids)
    if first < row.start or after > end:
        return (
            f"targets follow positions {first} to {after - 1}, the row has {row.start} to {end - 1}"
        )
    return _ids_problem(row.target_ids, "a target id", limits)


def _write_problem(write: PageWrite, limits: RunnerLimits) -> str | None:
    max_pages = pages_for_tokens(limits.context_length, page_size=limits.page_size)
    if write.first_page < 0 or write.first_page + len(write.pages) > max_pages:
        return (
            f"page writes end at {write.first_page + len(write.pages)}, the table has {max_pages}"
        )
    if len(write.pages) and (np.min(write.pages) < 1 or np.max(write.pages) > limits.num_pages):
        return f"a page is not in 1..{limits.num_pages}"
    return None


def _are_writes_sound(writes: Sequence[PageWrite], limits: RunnerLimits) -> bool:
    """Look at all writes at once: a step may have hundreds of them."""
    slots = [write.slot for write in writes]
    firsts = [write.first_page for write in writes]
    ends = [write.first_page + len(write.pages) for write in writes]
    max_pages = pages_for_tokens(limits.context_length, page_size=limits.page_size)
    if min(slots) < 1 or max(slots) > limits.max_slots or min(firsts) < 0 or max(ends) > max_pages:
        return False
    pages = np.concatenate([write.pages for write in writes])
    return not len(pages) or bool(pages.min() >= 1 and pages.max() <= limits.num_pages)


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


def _group_problems(decodes: DecodeRows, limits: RunnerLimits) -> Iterator[str]:
    """What can be told of groups without their pages."""
    after = 0
    for group in decodes.groups:
        end = group.first + group.count
        if group.first < after or group.count < 1 or end > len(decodes.slots):
            yield (
                f"a group of decode rows {group.first} to {end - 1} of {len(decodes.slots)}, after "
                f"one that ends before row {after}"
            )
            return
        after = end
        least = int(decodes.starts[group.first : end].min())
        if group.num_tokens < 1 or group.num_tokens % limits.page_size or group.num_tokens > least:
            yield (
                f"decode rows {group.first} to {end - 1} are to share {group.num_tokens} positions "
                f"in pages of {limits.page_size}; the shortest has {least}"
            )


def _problems(batch: ScheduleBatch, limits: RunnerLimits) -> Iterator[str]:
    for init in batch.slot_inits:
        problem = _slot_problem(init.slot, limits) or _init_problem(init, limits)
        if problem is not None:
            yield f"slot {init.slot}: {problem}"
    are_sound = not batch.page_writes or _are_writes_sound(batch.page_writes, limits)
    for write in () if are_sound else batch.page_writes:
        problem = _slot_problem(write.slot, limits) or _write_problem(write, limits)
        if problem is not None:
            yield f"slot {write.slot}: {problem}"
    for row in batch.extends:
        problem = _slot_problem(row.slot, limits) or _row_problem(row, limits)
        if problem is not None:
            yield f"request {row.request_id}: {problem}"
    yield from _decode_problems(batch.decodes, limits)
    if batch.decodes.groups:
        yield from _group_problems(batch.decodes, limits)
    slots = {row.slot for row in batch.extends}.union(batch.decodes.slots.tolist())
    if len(slots) != batch.num_rows:
        yield "two rows have the same slot"


def require_sound(batch: ScheduleBatch, limits: RunnerLimits) -> None:
    """Raise ``StepError`` naming every breach of the contract of ``ScheduleBatch``."""
    problems = list(_problems(batch, limits))
    if problems:
        message = f"step {batch.step}: {'; '.join(problems)}"
        raise StepError(message)
