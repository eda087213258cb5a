"""Owns what a person sees while a pod starts: a bar or percentages in the log, then the URL."""

import logging
from typing import TextIO

from mizzen_worker.ipc.parent_link import Report

logger = logging.getLogger(__name__)

_BAR_CHARS = 30
_LOG_STEP = 0.1


class Progress:
    """Shows the loading of ranks: the slowest one's phase and share."""

    def __init__(self, *, out: TextIO, is_terminal: bool) -> None:
        self._out = out
        self._is_terminal = is_terminal
        self._shown_phase = ""
        self._shown = -1.0
        self._loading: dict[str, Report] = {}

    def note(self, name: str, report: Report) -> None:
        """Take a rank's report."""
        if report.state == "loading" and report.detail:
            self._loading[name] = report
        else:
            self._loading.pop(name, None)
        if not self._loading:
            self._finish()
            return
        # All ranks load the same model and tell alike often: who told least is the slowest.
        slowest = min(self._loading.values(), key=lambda report: report.num_beats)
        if slowest.detail != self._shown_phase:
            self._finish()
            self._shown_phase = slowest.detail
        self._show(slowest.detail, slowest.progress)

    def _show(self, phase: str, progress: float) -> None:
        if self._is_terminal:
            filled = round(progress * _BAR_CHARS)
            bar = "#" * filled + "-" * (_BAR_CHARS - filled)
            self._out.write(f"\r{phase} [{bar}] {progress:4.0%}")
            self._out.flush()
            self._shown = progress
        elif progress - self._shown >= _LOG_STEP or progress in {0.0, 1.0}:
            if progress != self._shown:
                logger.info(phase, extra={"percent": round(progress * 100)})
            self._shown = progress

    def _finish(self) -> None:
        if self._is_terminal and self._shown >= 0:
            self._out.write("\n")
            self._out.flush()
        self._shown = -1.0


class Announcer:
    """Prints once where the service is and how to ask it something."""

    def __init__(self, *, served_name: str, out: TextIO) -> None:
        self._served_name = served_name
        self._out = out
        self._is_done = False

    def note(self, report: Report) -> None:
        """Take a front's report."""
        if self._is_done or report.state != "ready":
            return
        self._is_done = True
        host, _, port = report.detail.partition(" ")
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        url = f"http://{shown}:{port}"
        body = (
            f'{{"model": "{self._served_name}", "temperature": 0, "stream": true, '
            '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
        )
        self._out.write(
            f"{self._served_name} is served at {url}/v1\n"
            f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
            f"    -d '{body}'\n"
        )
        self._out.flush()
