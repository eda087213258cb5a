"""Owns, by slot, how far each running request has been launched; owns no page and no token.

Arrays, because planning and settling look at every running request in every step. Invariants:

- ``num_kv`` counts launched positions, settled or not; ``num_kv <= num_room``;
- a decoding slot's next row computes position ``num_kv``; it is due while ``num_kv < max_kv``, so a
  request that will end by length is known in advance and never launched past its end;
- a slot keeps its request until every step that has a row of it has settled, so a step in flight
  finds its requests by slot.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mizzen_worker.contracts.batch import BoolArray, Int32Array, Int64Array
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.scheduler.req import Req


class SlotBook:
    """Slots 1..max_slots. Not thread safe: one loop owns it."""

    def __init__(self, *, max_slots: int) -> None:
        rows = max_slots + 1
        self.num_kv: Int64Array = np.zeros(rows, dtype=np.int64)
        self.num_room: Int64Array = np.zeros(rows, dtype=np.int64)
        """Positions that its pages hold."""
        self._max_kv: Int64Array = np.zeros(rows, dtype=np.int64)
        self._num_prompt: Int64Array = np.zeros(rows, dtype=np.int64)
        self._num_known: Int64Array = np.zeros(rows, dtype=np.int64)
        self._is_running: BoolArray = np.zeros(rows, dtype=np.bool_)
        self._last_step: Int64Array = np.zeros(rows, dtype=np.int64)
        self._launched_at: npt.NDArray[np.float64] = np.zeros(rows, dtype=np.float64)
        self._is_decoding: BoolArray = np.zeros(rows, dtype=np.bool_)
        self._needs_cpu_token: BoolArray = np.zeros(rows, dtype=np.bool_)
        self._reqs: npt.NDArray[np.object_] = np.full(rows, None, dtype=np.object_)
        self._newest_step = 0
        self._settled_step = 0

    def enter(self, slot: SlotIndex, req: Req, *, num_kv: int) -> None:
        """Give a slot to a request whose first ``num_kv`` positions are cached."""
        self._reqs[slot] = req
        self.num_kv[slot] = self.num_room[slot] = num_kv
        self._max_kv[slot] = req.max_tokens - 1
        self._num_prompt[slot] = req.num_prompt
        self._num_known[slot] = req.num_tokens
        self._is_running[slot] = True
        self._needs_cpu_token[slot] = req.needs_cpu_token
        self._last_step[slot] = 0
        self._is_decoding[slot] = False

    def start_decoding(self, slot: SlotIndex) -> None:
        """From now on every step gives the slot a token, up to its length."""
        self._is_decoding[slot] = True

    def stop(self, slot: SlotIndex) -> None:
        """Launch no further row of a slot."""
        self._is_decoding[slot] = self._is_running[slot] = False

    def leave(self, slot: SlotIndex) -> None:
        """Forget the slot's request."""
        self._reqs[slot] = None
        self.num_kv[slot] = self.num_room[slot] = 0

    def running(self) -> Int64Array:
        """List the slots of running requests."""
        return np.flatnonzero(self._is_running)

    def beginners(self) -> Sequence[Req]:
        """List running requests that have launched known tokens only, and no decode row."""
        is_beginner = self._is_running & (self.num_kv <= self._num_known)
        return self.reqs(np.flatnonzero(is_beginner))

    def lengths(self, slots: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Count tokens of running requests, those in flight too; output tokens; tokens to come."""
        num_tokens = np.maximum(self._num_known[slots], self.num_kv[slots] + 1)
        num_output = num_tokens - self._num_prompt[slots]
        return num_tokens, num_output, self._max_kv[slots] + 1 - num_tokens

    def due(self) -> Int64Array:
        """List decoding slots that have a token to get."""
        return np.flatnonzero(self._is_decoding & (self.num_kv < self._max_kv))

    def short(self, slots: Int64Array) -> Int64Array:
        """List those of ``slots`` whose next position lies beyond their pages."""
        return slots[self.num_kv[slots] >= self.num_room[slots]]

    def has_unknown_input(self, slots: Int64Array) -> bool:
        """Tell whether one of ``slots`` needs its last token on the CPU, and it is in flight."""
        is_waiting = self._needs_cpu_token[slots] & (self._last_step[slots] > self._settled_step)
        return bool(is_waiting.any())

    def reqs(self, slots: npt.NDArray[np.signedinteger]) -> Sequence[Req]:
        """List the requests in ``slots``."""
        reqs: list[Req] = self._reqs[slots].tolist()
        return reqs

    def are_distinct(self, slots: Int64Array) -> bool:
        """Tell whether no slot is there twice. Cheaper than sorting them."""
        is_there = np.zeros(len(self.num_kv), dtype=np.bool_)
        is_there[slots] = True
        return int(np.count_nonzero(is_there)) == len(slots)

    def is_decoding(self, slots: Int32Array) -> BoolArray:
        """Tell which of a step's decode rows have not ended since."""
        is_live: BoolArray = self._is_decoding[slots]
        return is_live

    def launched(
        self, slots: Int32Array, num_new: int | Int32Array, *, step: int, now: float
    ) -> None:
        """Note rows of a step: they compute the next ``num_new`` positions."""
        self.num_kv[slots] += num_new
        self._last_step[slots] = step
        self._launched_at[slots] = now
        self._newest_step = step

    def longest_wait_s(self, slots: Int64Array, now: float) -> float:
        """Time since the last row of each of ``slots``, the longest; 0 if all in the newest step.

        Who has a row in the newest step is being served, however long that takes.
        """
        waiting = slots[self._last_step[slots] < self._newest_step]
        return float(now - self._launched_at[waiting].min()) if len(waiting) else 0.0

    def last_step(self, slot: SlotIndex) -> int:
        """Number of the last step with a row of the slot."""
        return int(self._last_step[slot])

    def is_in_flight(self, slot: SlotIndex) -> bool:
        """Tell whether a step with a row of the slot has not settled."""
        return self.last_step(slot) > self._settled_step

    def settled(self, step: int) -> None:
        """Note that every step up to this one has settled."""
        self._settled_step = step
