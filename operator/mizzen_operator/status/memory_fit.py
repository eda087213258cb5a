"""Owns the condition Fits: whether the model fits the memory that the spec states.

Does not own the arithmetic (``planner/memory_fit``).
"""

from collections.abc import Iterator

from mizzen_operator.planner.memory_fit import FitReason, MemoryFit
from mizzen_operator.status.conditions import Verdict, no, unknown, yes
from mizzen_operator.status.running import FITS, PROGRESSING

INSUFFICIENT_MEMORY = FitReason.DOES_NOT_FIT.value
"""Reason of what waits for more memory."""


def fits(fit: MemoryFit | None) -> Iterator[Verdict]:
    """One verdict where memory is stated, none otherwise."""
    if fit is None:
        return
    if fit.reason is FitReason.FITS:
        yield yes(FITS, "EnoughMemory", fit.message)
    elif fit.is_refused:
        yield no(FITS, INSUFFICIENT_MEMORY, fit.message)
    elif fit.reason is FitReason.CLASS_NOT_KNOWN:
        yield unknown(FITS, "UnknownGpuClass", fit.message)
    else:
        yield unknown(FITS, "SizesNotKnown", fit.message)


def is_refused(fit: MemoryFit | None) -> bool:
    """Whether pods wait because they would not fit."""
    return fit is not None and fit.is_refused


def stopped_by_memory(fit: MemoryFit | None) -> Verdict | None:
    """The verdict that nothing goes on for lack of memory; None while it does."""
    if fit is None or not fit.is_refused:
        return None
    return no(PROGRESSING, INSUFFICIENT_MEMORY, fit.waits_for)
