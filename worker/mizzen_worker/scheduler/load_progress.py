"""Owns what a process that loads, or waits for others, tells its launcher; loads nothing."""

import logging
import time

from mizzen_worker.ipc.parent_link import ParentLink, Report
from mizzen_worker.model_executor.load_phase import LoadPhase
from mizzen_worker.observability.metric_names import GROUP_JOINED, GROUP_SIZE
from mizzen_worker.observability.recorder import Recorder

logger = logging.getLogger(__name__)

_REPORT_S = 1.0
_LOG_S = 10.0


class LoadProgress:
    """Reports the phases of loading and how far each one is."""

    def __init__(self, link: ParentLink, *, group_size: int = 1) -> None:
        self._link = link
        self._group_size = group_size
        self._recorder = Recorder("group")
        self._num_reports = 0
        self._phase = ""
        self._last_share = -1.0
        self._reported_s = self._logged_s = float("-inf")
        self._logged = ""

    def enter(self, phase: LoadPhase) -> None:
        """Note that a phase begins."""
        self._phase = phase.value
        self._report(0.0)

    def __call__(self, num_done: int, num_total: int) -> None:
        """Note progress, at most once per percent."""
        share = num_done / num_total if num_total else 1.0
        if share - self._last_share >= 0.01 or share >= 1:
            self._report(share)

    def wait(self, reason: str, num_joined: int) -> None:
        """Note that ranks are waited for, once a second; the log says it less often.

        Waiting is progress: how long it may take is the rendezvous' to limit.
        """
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORT_S:
            return
        self._reported_s = now_s
        self._phase = LoadPhase.RANKS.value
        self._recorder.set(GROUP_SIZE, self._group_size)
        self._recorder.set(GROUP_JOINED, num_joined)
        self._report(num_joined / self._group_size)
        if reason != self._logged or now_s - self._logged_s >= _LOG_S:
            self._logged, self._logged_s = reason, now_s
            logger.info(reason)

    def _report(self, share: float) -> None:
        self._num_reports += 1
        self._last_share = share
        self._link.report(
            Report(
                state="loading",
                num_beats=self._num_reports,
                progress=share,
                detail=self._phase,
                metrics=self._recorder.samples() if self._phase == LoadPhase.RANKS.value else (),
            )
        )
