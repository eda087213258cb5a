"""Owns the page-locked memory between host and captured steps; knows nothing of their meaning.

A captured step reads its words from, and writes its outcome to, the place whose turn it is: the
host counts the steps, and so does the device. Invariant: a place is written anew only when the
device has passed the step before in it, and that step's outcome has been taken out.
"""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.kernels.gpu.stage_step import HEADER, StepWords
from mizzen_worker.model_executor.device_link import CopyEvent

_NUM_PLACES = 4
"""Two steps are in flight as a rule: nobody waits for a place."""


class _Place:
    """One place of the ring."""

    def __init__(self, words: torch.Tensor, outcome: torch.Tensor, event: CopyEvent) -> None:
        self.words: Int32Array = words.numpy()
        self.outcome: Int32Array = outcome.view(torch.int32).view(-1, 2).numpy()
        self.event = event
        self.pending: PendingOutcome | None = None


class PendingOutcome:
    """What a captured step will have told about its rows."""

    def __init__(self, place: _Place, num_rows: int) -> None:
        self._place = place
        self._num_rows = num_rows
        self._taken: Int32Array | None = None

    def wait(self) -> list[npt.NDArray[Any]]:
        """See ``PendingDownload``: [2, rows], ids and marks of what has ended."""
        if self._taken is None:
            self._place.event.synchronize()
            self._taken = self._place.outcome[: self._num_rows].T.copy()
        return [self._taken]


class StepRing:
    """Places in turn."""

    def __init__(
        self,
        *,
        max_rows: int,
        max_writes: int,
        max_items: int,
        device: torch.device,
        make_event: Callable[[], CopyEvent],
        is_pinned: bool,
    ) -> None:
        self.outcome = torch.zeros(_NUM_PLACES, max_rows, dtype=torch.int64, pin_memory=is_pinned)
        """[places, max_rows] int64 host; see ``record_step``."""
        num_words = -(-(HEADER + 3 * (max_rows + max_writes + max_items)) // 32) * 32
        ring = torch.zeros(_NUM_PLACES, num_words, dtype=torch.int32, pin_memory=is_pinned)
        self.words = StepWords(
            ring=ring,
            counter=torch.zeros(1, dtype=torch.int32, device=device),
            max_rows=max_rows,
            max_writes=max_writes,
            max_items=max_items,
        )
        self._places = [
            _Place(*rows, make_event()) for rows in zip(ring, self.outcome, strict=True)
        ]
        self._number = 0

    def restart(self) -> None:
        """Count from 0 again; for after steps that the host did not count."""
        self._number = 0
        self.words.counter.zero_()

    def vacant_words(self) -> Int32Array:
        """The words of the next step, for writing."""
        place = self._next()
        if place.pending is not None:
            place.pending.wait()
            place.pending = None
        place.event.synchronize()
        return place.words

    def launched(self, num_rows: int) -> PendingOutcome:
        """Note that the step whose words were written has been queued on the device."""
        place = self._next()
        place.event.record()
        self._number = (self._number + 1) % _NUM_PLACES
        place.pending = PendingOutcome(place, num_rows)
        return place.pending

    def _next(self) -> _Place:
        return self._places[self._number]
