"""Owns the names of what a start consists of, as a person reads them; does none of it. Pure."""

import enum
from collections.abc import Callable, Mapping


class LoadPhase(enum.Enum):
    """One stretch of loading, in this order; the value is shown."""

    RANKS = "waiting for ranks"
    KERNELS = "compiling kernels"
    WEIGHTS = "loading weights"
    MEMORY = "measuring memory"
    GRAPHS = "capturing graphs"
    WARM_UP = "warming up"


PhaseCallback = Callable[[LoadPhase], None]
"""Called when a phase begins; progress that is told next is of that phase."""


class PhaseClock:
    """Tells how long each phase took, and passes phases on."""

    def __init__(self, enter: PhaseCallback, *, clock: Callable[[], float]) -> None:
        self._enter = enter
        self._clock = clock
        self._begun_s = 0.0
        self._phase: LoadPhase | None = None
        self._seconds: dict[str, float] = {}

    def enter(self, phase: LoadPhase) -> None:
        """Note that a phase begins, and with it that the one before has ended."""
        self._note()
        self._phase = phase
        self._enter(phase)

    def finish(self) -> Mapping[str, float]:
        """Note the end of the last phase; give seconds by phase."""
        self._note()
        return self._seconds

    def _note(self) -> None:
        now_s = self._clock()
        if self._phase is not None:
            self._seconds[self._phase.value] = round(now_s - self._begun_s, 2)
        self._begun_s = now_s


def ignore_phase(phase: LoadPhase) -> None:
    """Implement ``PhaseCallback`` for who does not care."""
    del phase
