"""Owns the shape of the largest step that a scheduler may ask for; runs none. Pure.

It is what memory is measured with: as many new tokens as one step takes, every other slot decoding
far into the context, and every row sampled in the dearest way.
"""

from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    RunnerLimits,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.ids import RequestId, SlotIndex
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.memory.sizing import pages_for_tokens

_DECODED_CONTEXT = 4096
"""Positions that a decode row sees: partial results of long rows take memory too."""
_DEAREST = SamplingParams(
    max_new_tokens=1 << 30,
    seed=1,
    temperature=0.8,
    top_p=0.9,
    frequency_penalty=0.1,
    logprobs=LogprobParams(num_top=1),
)
_GREEDY = SamplingParams(max_new_tokens=1 << 30, seed=1, temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSteps:
    """Two steps to run in this order, and the pages that they need."""

    largest: ScheduleBatch
    decode: ScheduleBatch
    num_pages: int


def trial_steps(limits: RunnerLimits, *, max_new_tokens: int) -> TrialSteps:
    """Plan the largest step of so many prompt tokens, then a decode step of every slot.

    Only ``limits.num_pages`` is not looked at. What a decode row sees before its new token is the
    sink: it is there in every pool, and holds nothing of meaning.
    """
    lengths = _lengths(limits, max_new_tokens)
    extends: list[ExtendRow] = []
    writes: list[PageWrite] = []
    num_pages = 0
    for row, length in enumerate(lengths):
        slot = SlotIndex(row + 1)
        count = pages_for_tokens(length, page_size=limits.page_size)
        writes.append(_write(slot, 0, num_pages, count))
        num_pages += count
        extends.append(
            ExtendRow(
                request_id=RequestId(f"trial-{slot}"),
                slot=slot,
                start=0,
                num_new=length,
                token_ids=np.zeros(length, dtype=np.int32),
                is_sampled=True,
            )
        )
    start = min(limits.context_length, _DECODED_CONTEXT) - 1
    others = range(len(lengths) + 1, limits.max_slots + 1)
    for number in others:
        writes.append(_write(SlotIndex(number), start // limits.page_size, num_pages, 1))
        num_pages += 1
    largest = ScheduleBatch(
        step=1,
        extends=tuple(extends),
        decodes=_decodes(list(others), start),
        slot_inits=_inits([*lengths, *(start for _ in others)], _DEAREST),
        page_writes=tuple(writes),
    )
    first_writes = tuple(
        _write(SlotIndex(row + 1), start // limits.page_size, row, 1) for row in range(len(lengths))
    )
    slots = list(range(1, limits.max_slots + 1))
    decode = ScheduleBatch(
        step=2,
        extends=(),
        decodes=_decodes(slots, start),
        slot_inits=_inits([start for _ in slots], _GREEDY),
        page_writes=first_writes,
    )
    return TrialSteps(largest=largest, decode=decode, num_pages=num_pages)


def _lengths(limits: RunnerLimits, max_new_tokens: int) -> list[int]:
    """Share the new tokens out over as few rows as the context allows."""
    # The token that follows a row has its place in the context too.
    longest = max(1, limits.context_length - 1)
    num_left = max_new_tokens
    lengths: list[int] = []
    while num_left > 0 and len(lengths) < limits.max_slots:
        lengths.append(min(longest, num_left))
        num_left -= lengths[-1]
    return lengths


def _write(slot: SlotIndex, first_page: int, num_before: int, count: int) -> PageWrite:
    pages = np.arange(num_before + 1, num_before + count + 1, dtype=np.int32)
    return PageWrite(slot=slot, first_page=first_page, pages=pages)


def _decodes(slots: list[int], start: int) -> DecodeRows:
    return DecodeRows(
        slots=np.array(slots, dtype=np.int32),
        starts=np.full(len(slots), start, dtype=np.int32),
    )


def _inits(num_known: list[int], sampling: SamplingParams) -> tuple[SlotInit, ...]:
    return tuple(
        SlotInit(
            slot=SlotIndex(row + 1),
            sampling=sampling,
            num_prompt_tokens=known,
            num_generated_tokens=0,
            eos_token_ids=(),
            max_tokens=1 << 30,
            history=np.zeros(known, dtype=np.int32) if sampling.has_penalty else None,
        )
        for row, known in enumerate(num_known)
    )
