"""Owns the decision whether the next waiting request may start now; pure, changes nothing.

Four budgets: slots, prompt tokens of this step, pages there are now, and pages that will be left
when every running request has grown as predicted.
"""

import enum
from dataclasses import dataclass

from mizzen_worker.memory.sizing import pages_for_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What is left in this step. ``is_idle``: nothing runs, so waiting would wait for nothing."""

    page_size: int
    slots: int
    chunk_tokens: int
    pages_now: int
    pages_reserved: int
    is_idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the next request needs. ``num_newly_protected`` pages of its cached prefix count as
    available until it locks them."""

    num_tokens: int
    num_cached: int
    num_newly_protected: int
    num_predicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Start with a first chunk of ``num_new`` tokens in ``num_new_pages`` further pages."""

    num_new: int
    num_new_pages: int


class Refused(enum.Enum):
    """Which budget is short. The queue stops there: nobody overtakes."""

    NO_SLOT = "no_slot"
    NO_CHUNK = "no_chunk"
    NO_PAGES = "no_pages"
    NO_PAGES_LATER = "no_pages_later"


def decide(budget: Budget, candidate: Candidate) -> Admitted | Refused:
    """Decide about one candidate. Cached tokens are whole pages."""
    if budget.slots < 1:
        return Refused.NO_SLOT
    page_size = budget.page_size
    available = budget.pages_now - candidate.num_newly_protected
    num_cached_pages = candidate.num_cached // page_size
    if not budget.is_idle:
        final = candidate.num_tokens + candidate.num_predicted
        needed = pages_for_tokens(final, page_size=page_size) - num_cached_pages
        if needed > available - budget.pages_reserved:
            return Refused.NO_PAGES_LATER
    num_new = chunk_length(
        num_remaining=candidate.num_tokens - candidate.num_cached,
        max_tokens=min(budget.chunk_tokens, available * page_size),
        page_size=page_size,
    )
    if num_new == 0:
        return Refused.NO_PAGES if available < 1 else Refused.NO_CHUNK
    return Admitted(num_new=num_new, num_new_pages=pages_for_tokens(num_new, page_size=page_size))


def chunk_length(*, num_remaining: int, max_tokens: int, page_size: int) -> int:
    """Cut a prefill: all of it, or whole pages, so that the next chunk starts on a page."""
    if num_remaining <= max_tokens:
        return num_remaining
    return max(0, max_tokens) // page_size * page_size
