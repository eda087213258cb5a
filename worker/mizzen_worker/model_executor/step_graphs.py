"""Owns the captured steps of a runner as a whole: decode steps, and forwards of small prefills."""

import logging
import time

import torch

from mizzen_worker.contracts.batch import ScheduleBatch
from mizzen_worker.model_executor.captured_steps import LaunchedGraph
from mizzen_worker.model_executor.decode_graphs import DecodeGraphs
from mizzen_worker.model_executor.device_link import StepPack
from mizzen_worker.model_executor.pass_inputs import PassInputs
from mizzen_worker.model_executor.prefill_graphs import PrefillGraphs
from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.model_executor.weights.progress import ProgressCallback

logger = logging.getLogger(__name__)


class StepGraphs:
    """Implements ``CapturedSteps``."""

    def __init__(self, decode: DecodeGraphs, prefill: PrefillGraphs) -> None:
        self._decode = decode
        self._prefill = prefill

    def capture(self, progress: ProgressCallback) -> None:
        """See ``CapturedSteps``."""
        started = time.monotonic()
        num_prefills = self._prefill.num_graphs
        num_all = num_prefills + self._decode.num_graphs
        self._prefill.capture(lambda done, _: progress(done, num_all))
        between = time.monotonic()
        self._decode.capture(lambda done, _: progress(num_prefills + done, num_all))
        progress(num_all, num_all)
        facts = {
            "graphs": num_all,
            "seconds": round(time.monotonic() - started, 2),
            "of_prefills": round(between - started, 2),
        }
        logger.info("steps are captured", extra=facts)

    def run_pass(
        self, inputs: PassInputs, pack: StepPack, words: torch.Tensor
    ) -> torch.Tensor | None:
        """See ``CapturedSteps``."""
        return self._prefill.run(inputs, pack, words)

    def can_launch(self, batch: ScheduleBatch) -> bool:
        """See ``CapturedSteps``."""
        return self._decode.can_launch(batch)

    def launch(self, batch: ScheduleBatch, tail: Tail) -> LaunchedGraph:
        """See ``CapturedSteps``."""
        return self._decode.launch(batch, tail)
