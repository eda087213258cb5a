"""Owns one child process: start by exec, its line, its reports, its end; owns no policy.

The configuration travels over an inherited line, never in arguments or the environment, and the
child begins as a fresh interpreter: nothing is forked and nothing pickled.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from mizzen_worker.contracts.messages import Control, ControlVerb, Reply
from mizzen_worker.ipc.parent_link import Alive, ChildLink, Drain, Report, open_pair
from mizzen_worker.observability.samples import Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run: a module's ``main``, the configuration and the descriptors it is given.

    ``environment`` is added to the launcher's own. Processes of one ``fate`` can do nothing without
    each other: when one dies, the others are ended too.
    """

    name: str
    kind: str
    module: str
    configuration: msgspec.Struct
    is_restarted: bool
    inherited_fds: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fate: str | None = None


class Child:
    """One life of one process."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        clock: Callable[[], float],
        environment: Mapping[str, str],
        on_report: Callable[[Report], None],
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._environment = {**environment, **spec.environment}
        self._on_report = on_report
        self._link: ChildLink | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._metrics: tuple[Sample, ...] = ()
        self._num_asked = 0
        self._answers: dict[int, asyncio.Future[Reply | None]] = {}
        self._report = Report(state="starting", num_beats=0)
        self._beat_s = clock()
        self._alive_s: float | None = None

    @property
    def report(self) -> Report:
        """What it said last."""
        return self._report

    @property
    def metrics(self) -> tuple[Sample, ...]:
        """Its metrics as last reported."""
        return self._metrics

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def silent_s(self) -> float:
        """Seconds since its loop was last seen to turn."""
        return self._clock() - self._beat_s

    @property
    def lifeless_s(self) -> float:
        """Seconds since it last showed life, where it is one that does; 0 for others."""
        return 0.0 if self._alive_s is None else self._clock() - self._alive_s

    @property
    def pid(self) -> int | None:
        """Process id."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and hand it its configuration; raises ``OSError``."""
        self._link, theirs = open_pair()
        with theirs:
            self._link.send(self._spec.configuration)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    self._spec.module,
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno(), *self._spec.inherited_fds],
                    env=self._environment,
                    stdin=asyncio.subprocess.DEVNULL,
                )
            except OSError:
                self._close()
                raise
        asyncio.get_running_loop().add_reader(self._link.fileno(), self._read)

    async def wait(self) -> int:
        """Wait for its end, and hear its last words; give the exit status."""
        if self._process is None:
            return 1
        status = await self._process.wait()
        while self._read():
            pass
        self._close()
        return status

    def drain(self, wish: Drain) -> None:
        """Ask it to end what it has and exit."""
        if self._link is not None:
            self._link.send(wish)

    async def ask(
        self, verb: ControlVerb, arguments: dict[str, str], *, limit_s: float
    ) -> Reply | None:
        """Have its loop do or tell something; None when it does not answer in time, or dies."""
        if self._link is None:
            return None
        self._num_asked += 1
        answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._answers[self._num_asked] = answer
        self._link.send(Control(control_id=self._num_asked, verb=verb, arguments=arguments))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._answers = {
                number: other for number, other in self._answers.items() if other is not answer
            }

    def kill(self) -> None:
        """End it now."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGKILL)

    def _read(self) -> bool:
        """Take one message; tell whether there may be another."""
        if self._link is None:
            return False
        try:
            message = self._link.receive()
        except (BlockingIOError, ConnectionError):
            return False
        except msgspec.DecodeError:
            logger.exception("report not understood", extra={"child": self._spec.name})
            return True
        match message:
            case None:
                self._close()
            case Reply():
                answer = self._answers.get(message.control_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Alive():
                self._alive_s = self._clock()
            case Report():
                self._note(message)
        return True

    def _note(self, report: Report) -> None:
        if report.num_beats != self._report.num_beats or report.state != self._report.state:
            self._beat_s = self._clock()
        self._metrics = report.metrics or self._metrics
        self._report = report
        self._on_report(report)

    def _close(self) -> None:
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            self._link.close()
            self._link = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
