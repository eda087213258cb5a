"""Owns the protocol between the runner and steps that are captured as a whole; captures none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from mizzen_worker.contracts.batch import ScheduleBatch
from mizzen_worker.model_executor.device_link import PendingDownload, StepPack
from mizzen_worker.model_executor.pass_inputs import PassInputs
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.slot_table import SlotTable
from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.model_executor.weights.progress import ProgressCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedGraph:
    """``logits`` [rows, vocab] float32 where the captured step ends with them, else None.

    They are valid until another captured step is launched.
    """

    outcome: PendingDownload
    logits: torch.Tensor | None


class CapturedSteps(Protocol):
    """Steps that run on the device as they were captured, with the numbers of each launch."""

    def capture(self, progress: ProgressCallback) -> None:
        """Capture them all, before the first step."""
        ...

    def run_pass(
        self, inputs: PassInputs, pack: StepPack, words: torch.Tensor
    ) -> torch.Tensor | None:
        """Logits of a pass by a captured forward; None where there is none for such a pass.

        ``words`` is what ``pack`` became on the device. The step's requests and pages are entered.
        """
        ...

    def can_launch(self, batch: ScheduleBatch) -> bool:
        """Whether such a step has been captured."""
        ...

    def launch(self, batch: ScheduleBatch, tail: Tail) -> LaunchedGraph:
        """Queue a step, from its page writes to the record of its tokens unless it ends before.

        ``tail`` is not UNFIT. Without logits the outcome is as of ``SlotState.record``.
        """
        ...


MakeCapturedSteps = Callable[[SlotState, SlotTable], CapturedSteps]
"""For the slots of one runner."""
