"""Owns running long steps side by side, and showing how each is doing.

On a terminal the running steps have a live line each; elsewhere there is a line when a step begins
and ends, and one every half minute in between. Each step's whole output is in a file of its own.
Only the standard library is used: this runs before anything is installed.

Invariant: when run() returns or raises, no process that a step started is left.
"""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_REPAINT_S = 0.2
_HEARTBEAT_S = 30.0
_GRACE_S = 10.0
NOTE = "note: "
"""Begins a line of a step that the reader is to keep on the screen."""
DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""Even when this process is killed, what it started does not go on alone."""
IN_A_CELL = (
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--"),
)
"""For a program that mounts and forks as root: its mounts and its children end with it."""


class StepError(RuntimeError):
    """A step failed; the message says which, why and where its output is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, after the steps it names."""

    name: str
    run: "Callable[[StepRun], object]"
    after: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _State:
    began: float
    text: str = ""
    said: float = 0.0


class Board:
    """What the reader sees; the owner of the terminal while steps run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._lock = threading.Lock()
        self._running: dict[str, _State] = {}
        self._painted = 0
        self._origin = time.monotonic()

    def begin(self, name: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._running[name] = _State(began=now, said=now)
            if not self._live:
                self._print(f"{name} ...")

    def text(self, name: str, text: str) -> None:
        with self._lock:
            if text and name in self._running:
                self._running[name].text = text

    def note(self, name: str, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._print(f"{name}: {text}")

    def end(self, name: str, how: str) -> None:
        with self._lock:
            seconds = time.monotonic() - self._running.pop(name).began
            self._print(f"{name} {how} ({seconds:.0f} s)")

    def refresh(self) -> None:
        """Paint again, or say that the running steps still run."""
        with self._lock:
            if self._live:
                self._erase()
                self._paint()
                return
            now = time.monotonic()
            for name, state in self._running.items():
                if now - state.said >= _HEARTBEAT_S:
                    state.said = now
                    self._print(f"{name} ({now - state.began:.0f} s) {state.text[:150]}")

    def _print(self, line: str) -> None:
        self._erase()
        self._stream.write(f"[{time.monotonic() - self._origin:4.0f} s] {line}\n")
        if self._live:
            self._paint()
        self._stream.flush()

    def _erase(self) -> None:
        if self._painted:
            self._stream.write(f"\x1b[{self._painted}F\x1b[J")
            self._painted = 0

    def _paint(self) -> None:
        columns = shutil.get_terminal_size().columns
        now = time.monotonic()
        for name, state in self._running.items():
            line = f"   {now - state.began:4.0f} s  {name:<12} {state.text}"
            self._stream.write(line[: columns - 1] + "\n")
        self._painted = len(self._running)
        self._stream.flush()


@dataclass(slots=True, kw_only=True)
class StepRun:
    """What a running step may use."""

    name: str
    log: Path
    board: Board
    cancelled: threading.Event
    _processes: set["subprocess.Popen[str]"] = field(default_factory=set)

    def say(self, text: str) -> None:
        """Show one line of progress and keep it in the step's file."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(text + "\n")
        if text.startswith(NOTE):
            self.board.note(self.name, text.strip().removeprefix(NOTE))
        self.board.text(self.name, text.strip())

    def command(
        self,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> str:
        """Run a program and return its last line; raises StepError when it fails."""
        tail: list[str] = []
        self.say(f"$ {' '.join(map(str, argv))}")
        process = subprocess.Popen(
            [*DIE_WITH_US, *(str(word) for word in argv)],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._processes.add(process)
        if self.cancelled.is_set():
            self.stop()
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                if line.strip():
                    tail = [*tail[-11:], line.rstrip()]
                    self.say(line.rstrip())
        self._processes.discard(process)
        if self.cancelled.is_set():
            raise StepError("stopped")
        if process.returncode != 0:
            raise StepError("\n    ".join(tail) or f"{argv[0]} ended with {process.returncode}")
        return tail[-1] if tail else ""

    def stop(self) -> None:
        """End what this step runs: asked first, killed after a while."""
        for process in tuple(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        for process in tuple(self._processes):
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class _Crew:
    """The threads of one run; used by the main thread only."""

    def __init__(self, steps: Sequence[Step], logs: Path, board: Board) -> None:
        self._waiting = list(steps)
        self._logs = logs
        self._board = board
        self._done: set[str] = set()
        self._running: dict[str, tuple[StepRun, threading.Thread]] = {}
        self._ended: queue.SimpleQueue[tuple[Step, BaseException | None]] = queue.SimpleQueue()
        self._cancelled = threading.Event()

    def start_ready(self) -> bool:
        """Start every step that nothing holds back; False when no step runs any more."""
        for step in [step for step in self._waiting if self._done >= set(step.after)]:
            self._waiting.remove(step)
            context = StepRun(
                name=step.name, log=self._log(step), board=self._board, cancelled=self._cancelled
            )
            context.log.write_text("", encoding="utf-8")
            thread = threading.Thread(target=self._work, args=(step, context), daemon=True)
            self._running[step.name] = (context, thread)
            self._board.begin(step.name)
            thread.start()
        if self._waiting and not self._running:
            raise StepError(f"{self._waiting[0].name} waits for a step that is not there")
        return bool(self._running)

    def await_one(self) -> None:
        """Wait a moment for the next step to end; raises StepError when it failed."""
        try:
            step, error = self._ended.get(timeout=_REPAINT_S)
        except queue.Empty:
            self._board.refresh()
            return
        self._running.pop(step.name)[1].join()
        self._board.end(step.name, "done" if error is None else "FAILED")
        if error is None:
            self._done.add(step.name)
            return
        message = f"{step.name}: {error}\n  its output: {self._log(step)}"
        raise StepError(message) from error

    def cancel(self) -> None:
        """End what still runs and wait for it."""
        self._cancelled.set()
        for context, thread in self._running.values():
            context.stop()
            thread.join()

    def _log(self, step: Step) -> Path:
        return self._logs / f"{step.name}.log"

    def _work(self, step: Step, context: StepRun) -> None:
        try:
            step.run(context)
        except BaseException as error:  # noqa: BLE001  (handed to the main thread as it is)
            self._ended.put((step, error))
        else:
            self._ended.put((step, None))


def run(steps: Sequence[Step], *, logs: Path, stream: TextIO = sys.stdout) -> None:
    """Run steps in the order that they need, side by side where that is free to choose.

    The first failure ends the others and is raised as StepError.
    """
    logs.mkdir(parents=True, exist_ok=True)
    crew = _Crew(steps, logs, Board(stream))
    try:
        while crew.start_ready():
            crew.await_one()
    finally:
        crew.cancel()


def run_each(steps: Sequence[Step], *, logs: Path, stream: TextIO = sys.stdout) -> list[StepError]:
    """Run independent steps side by side to their ends and return what failed."""
    logs.mkdir(parents=True, exist_ok=True)
    crew = _Crew(steps, logs, Board(stream))
    failures: list[StepError] = []
    try:
        while crew.start_ready():
            try:
                crew.await_one()
            except StepError as error:
                failures.append(error)
    finally:
        crew.cancel()
    return failures
