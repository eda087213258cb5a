"""Owns which steps a runner runs before its first request; runs none. Pure.

Between them they call every kernel that an uncaptured step may need: prompts from the longest chunk
down to a page, without and behind a prefix, alone, beside a decode row and beside any number of
long ones: their attention is cut by how many they are. So no request waits for a kernel that is
compiled or brought to the device.
"""

from collections.abc import Iterator

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
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.memory.sizing import pages_for_tokens

_LEAST_TOKENS = 16
_PROMPT, _OTHER = SlotIndex(1), SlotIndex(2)
_DECODED_CONTEXT = 4096
"""Positions that many decode rows see; what is before their new tokens is the sink."""
_MOST_OTHERS = 512


def warm_up_steps(
    limits: RunnerLimits, *, max_new_tokens: int, uncaptured_tokens: int | None = None
) -> Iterator[ScheduleBatch]:
    """Plan the steps, the largest first; what the pool or the context has no room for is left out.

    Steps of ``uncaptured_tokens`` and some rows are not captured ones; None: all rows are alike, so
    none are run beside many. All use the first slots and pages, and leave nothing that the next
    request sees.
    """
    step = 0
    for num_new in _lengths(limits, max_new_tokens):
        # An odd length too: kernels are specialised for multiples of 16.
        for length, start in ((num_new, 0), (num_new - 1, limits.page_size)):
            step += 1
            yield _prompt_step(step, limits, length=length, start=start)
    if uncaptured_tokens is None:
        return
    length = min(max_new_tokens, uncaptured_tokens, limits.context_length - 1)
    num_left = limits.num_pages - 1 - pages_for_tokens(length, page_size=limits.page_size)
    num_others = 1
    while num_others <= min(limits.max_slots - 1, num_left, _MOST_OTHERS):
        step += 1
        yield _mixed_step(step, limits, length=length, num_others=num_others)
        num_others *= 2


def _lengths(limits: RunnerLimits, max_new_tokens: int) -> list[int]:
    # One page stands before the chunk, one is the other row's, and a token follows.
    room = min(limits.context_length - 1, (limits.num_pages - 1) * limits.page_size)
    most = min(max_new_tokens, room - limits.page_size)
    lengths = []
    while most >= _LEAST_TOKENS:
        lengths.append(most)
        most //= 2
    return lengths


def _prompt_step(step: int, limits: RunnerLimits, *, length: int, start: int) -> ScheduleBatch:
    count = pages_for_tokens(start + length + 1, page_size=limits.page_size)
    has_other = start > 0 and limits.max_slots > 1
    writes = [
        PageWrite(slot=_PROMPT, first_page=0, pages=np.arange(1, count + 1, dtype=np.int32)),
        PageWrite(slot=_OTHER, first_page=0, pages=np.array([count + 1], dtype=np.int32)),
    ]
    # Half of the steps are greedy, the others draw.
    temperature = 0.8 if start else 0.0
    inits = [_init(_PROMPT, start + length, temperature), _init(_OTHER, 1, temperature)]
    others = [_OTHER] if has_other else []
    return ScheduleBatch(
        step=step,
        extends=(_prompt(length, start),),
        decodes=DecodeRows(
            slots=np.array(others, dtype=np.int32), starts=np.ones(len(others), dtype=np.int32)
        ),
        slot_inits=tuple(inits if has_other else inits[:1]),
        page_writes=tuple(writes if has_other else writes[:1]),
    )


def _mixed_step(step: int, limits: RunnerLimits, *, length: int, num_others: int) -> ScheduleBatch:
    start = min(limits.context_length, _DECODED_CONTEXT) - 1
    count = pages_for_tokens(length, page_size=limits.page_size)
    slots = [SlotIndex(int(_OTHER) + number) for number in range(num_others)]
    writes = [PageWrite(slot=_PROMPT, first_page=0, pages=np.arange(1, count + 1, dtype=np.int32))]
    for number, slot in enumerate(slots):
        pages = np.array([count + 1 + number], dtype=np.int32)
        writes.append(PageWrite(slot=slot, first_page=start // limits.page_size, pages=pages))
    return ScheduleBatch(
        step=step,
        extends=(_prompt(length, 0),),
        decodes=DecodeRows(
            slots=np.array(slots, dtype=np.int32),
            starts=np.full(num_others, start, dtype=np.int32),
        ),
        slot_inits=(_init(_PROMPT, length, 0.0), *(_init(slot, start, 0.0) for slot in slots)),
        page_writes=tuple(writes),
    )


def _prompt(length: int, start: int) -> ExtendRow:
    return ExtendRow(
        request_id=RequestId("warm-up"),
        slot=_PROMPT,
        start=start,
        num_new=length,
        token_ids=np.zeros(length, dtype=np.int32),
        is_sampled=True,
    )


def _init(slot: SlotIndex, num_known: int, temperature: float) -> SlotInit:
    return SlotInit(
        slot=slot,
        sampling=SamplingParams(max_new_tokens=1 << 30, seed=1, temperature=temperature),
        num_prompt_tokens=num_known,
        num_generated_tokens=0,
        eos_token_ids=(),
        max_tokens=1 << 30,
    )
