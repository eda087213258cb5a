"""Owns actions between being told and being done; owns neither tree nor pools.

Routes by the component's name. Invariant (T20): an action leaves the queue before it is done, so it
is done once; what a failing one left behind is done with the next call, so none is lost.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from mizzen_worker.cache.actions import Action
from mizzen_worker.contracts.batch import Int32Array


class UnitPool(Protocol):
    """Where units of one component come from and go back to."""

    def give_back(self, units: Int32Array, /) -> None:
        """Take units back; units that are not out raise and nothing changes."""
        ...


class ActionExecutor:
    """Runs a tree's actions on the pools of its components."""

    def __init__(self, pools: Mapping[str, UnitPool]) -> None:
        self._pools = pools
        self._waiting: deque[Action] = deque()

    @property
    def num_waiting(self) -> int:
        """Count actions that are still to be done: 0 unless one failed."""
        return len(self._waiting)

    def run(self, actions: Iterable[Action]) -> None:
        """Do what a failure left behind, then these, in order; a failure is the pool's own."""
        self._waiting.extend(actions)
        while self._waiting:
            action = self._waiting.popleft()
            self._pools[action.component].give_back(action.units)
