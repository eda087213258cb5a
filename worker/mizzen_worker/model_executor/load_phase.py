"""Owns the names of what a start consists of, as a person reads them; does none of it. Pure."""

import enum
from collections.abc import Callable


class LoadPhase(enum.Enum):
    """One stretch of loading, in this order; the value is shown."""

    KERNELS = "compiling kernels"
    WEIGHTS = "loading weights"
    MEMORY = "measuring memory"
    GRAPHS = "capturing graphs"
    WARM_UP = "warming up"


PhaseCallback = Callable[[LoadPhase], None]
"""Called when a phase begins; progress that is told next is of that phase."""


def ignore_phase(phase: LoadPhase) -> None:
    """Implement ``PhaseCallback`` for who does not care."""
    del phase
