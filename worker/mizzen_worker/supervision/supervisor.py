"""Owns the set of a pod's processes: start, watch, restart or fail stop, drain; owns no tree.

Invariants: every process has one spec; a process whose spec says so is started again after a death,
any other death ends all; a death ends the others of its ``fate`` too; what cannot be started counts
as dead; a process that stands still for too long, in its loop or before it, is ended, which is a
death like any other; a process that was told to drain is not started again, one that others still
drain on is; ``run`` returns only when nothing of the set runs any more.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.messages import ControlVerb, Reply
from mizzen_worker.ipc.parent_link import Drain, Report
from mizzen_worker.observability.aggregate import Aggregate
from mizzen_worker.observability.metric_names import PROCESS_RESTARTS, PROCESS_STUCK, PROCESS_UP
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.supervision.child import Child, ChildSpec
from mizzen_worker.supervision.health import (
    UNSTARTED_STATES,
    PodHealth,
    ProcessView,
    SilenceLimits,
    pod_health,
    stuck_processes,
)

logger = logging.getLogger(__name__)

_RESTART_WAITS_S = (0.1, 1.0, 2.0, 5.0, 10.0)
_CALM_S = 30.0
"""A process that lived so long is started again without waiting longer than the time before."""
_MAX_EARLY_DEATHS = 5
_KILL_AFTER_S = 5.0
_WATCH_S = 1.0
_TELLING_STATES = frozenset({"failed", "drained"})
"""States whose detail says why a process ends."""
_ASK_LIMIT_S = 12.0
"""Longer than a front waits for the workers that it asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    """Which processes drain one after the other: fronts end before what they stand on."""

    stages: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who is told; both return at once."""

    on_report: Callable[[str, Report], None]
    on_drain: Callable[[], None] = lambda: None


class Supervisor:
    """Implements ``Pod`` for the admin port."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        plan: DrainPlan,
        clock: Callable[[], float],
        environment: Mapping[str, str],
        limits: SilenceLimits,
        listeners: Listeners,
    ) -> None:
        """``plan`` names every spec; ``limits`` bound how long a process may stand still."""
        self._specs = {spec.name: spec for spec in specs}
        self._plan = plan
        self._clock = clock
        self._environment = environment
        self._limits = limits
        self._listeners = listeners
        self._recorder = Recorder("launcher")
        self._aggregate = Aggregate()
        self._children: dict[str, Child] = {}
        self._failed: asyncio.Event = asyncio.Event()
        self._drained: asyncio.Event = asyncio.Event()
        self._is_draining = False
        self._ending: set[str] = set()
        """Processes that were told to drain, or are about to be."""
        self._was_started = False
        self._failure: str | None = None
        self._stuck: dict[str, str] = {}
        self._ended_by_fate: set[str] = set()

    @property
    def failure(self) -> str | None:
        """Why the set ended, when nobody asked for it."""
        return self._failure

    async def run(self) -> None:
        """Run every process until one fails for good or a drain is over."""
        keepers = [asyncio.create_task(self._keep(spec)) for spec in self._specs.values()]
        keepers.append(asyncio.create_task(self._watch()))
        ends = [
            asyncio.create_task(self._failed.wait()),
            asyncio.create_task(self._drained.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for child in self._children.values():
                child.kill()
            for task in (*keepers, *ends):
                task.cancel()
            await asyncio.gather(*keepers, *ends, return_exceptions=True)
            for child in self._children.values():
                await child.wait()

    def health(self) -> PodHealth:
        """See ``Pod``; changes nothing."""
        return pod_health(
            self._views(),
            limits=self._limits,
            is_draining=self._is_draining,
            was_started=self._was_started,
        )

    def _views(self) -> list[ProcessView]:
        return [
            ProcessView(
                name=name,
                is_running=child.is_running,
                state=child.report.state,
                silent_s=child.silent_s,
                is_restarted=self._specs[name].is_restarted,
                lifeless_s=child.lifeless_s,
            )
            for name, child in self._children.items()
        ]

    def metrics(self, process: str | None) -> str:
        """See ``Pod``."""
        for name in self._specs:
            child = self._children.get(name)
            self._recorder.set(PROCESS_UP, int(child is not None and child.is_running), name)
        self._aggregate.note("launcher", self._recorder.samples())
        for name, child in self._children.items():
            if child.is_running:
                self._aggregate.note(name, child.metrics)
        return self._aggregate.text(process)

    def process_ids(self) -> Mapping[str, int | None]:
        """Give the process id of each process that runs, None for one that does not, by name."""
        return {
            name: child.pid if child.is_running else None for name, child in self._children.items()
        }

    async def ask(
        self, kind: str, verb: ControlVerb, arguments: dict[str, str]
    ) -> Mapping[str, Reply | None]:
        """Ask every process of a kind; by name, None for one that does not answer."""
        asked = {
            name: child for name, child in self._children.items() if self._specs[name].kind == kind
        }
        answers = await asyncio.gather(
            *(child.ask(verb, arguments, limit_s=_ASK_LIMIT_S) for child in asked.values())
        )
        return dict(zip(asked, answers, strict=True))

    async def drain(self, mode: DrainMode, deadline_s: float, *, settle_s: float = 0.0) -> None:
        """See ``Pod``. A second call waits for the first."""
        if self._is_draining:
            await self._drained.wait()
            return
        self._is_draining = True
        self._listeners.on_drain()
        logger.info("draining", extra={"mode": mode.value, "deadline_s": deadline_s})
        ends_at_s = self._clock() + deadline_s
        for stage in self._plan.stages:
            self._ending.update(stage)
            left_s = max(0.0, ends_at_s - self._clock())
            waits = [
                asyncio.create_task(
                    self._drain_one(
                        self._children[name],
                        Drain(mode=mode, deadline_s=left_s, settle_s=min(settle_s, left_s)),
                    )
                )
                for name in stage
                if name in self._children
            ]
            if waits:
                await asyncio.wait(waits)
        logger.info("drained")
        self._drained.set()

    async def _drain_one(self, child: Child, wish: Drain) -> None:
        if not child.is_running:
            return
        if child.report.state in UNSTARTED_STATES:
            child.kill()  # It holds no work yet, and loading may take longer than any drain.
            await child.wait()
            return
        child.drain(wish)
        try:
            async with asyncio.timeout(wish.deadline_s + _KILL_AFTER_S):
                await child.wait()
        except TimeoutError:
            child.kill()

    async def _keep(self, spec: ChildSpec) -> None:
        """Run one process, and again where its spec says so."""
        num_early_deaths = 0
        while True:
            child = Child(
                spec,
                clock=self._clock,
                environment=self._environment,
                on_report=lambda report: self._note_report(spec.name, report),
            )
            self._children[spec.name] = child
            begun_s = self._clock()
            has_failed, reason = await self._live(spec.name, child)
            tied = self._end_fate_of(spec)
            if self._is_draining:
                if has_failed:
                    logger.error("process died while it drained", extra={"reason": reason})
                if not has_failed or spec.name in self._ending or not spec.is_restarted:
                    return
            was_calm = self._clock() - begun_s > _CALM_S or child.report.state == "ready"
            num_early_deaths = 0 if was_calm else num_early_deaths + 1
            if not spec.is_restarted or num_early_deaths >= self._max_early_deaths():
                if self._is_draining:
                    return
                self._fail(reason)
                return
            wait_s = _RESTART_WAITS_S[min(num_early_deaths, len(_RESTART_WAITS_S) - 1)]
            logger.error("process died, starting it again", extra={"reason": reason})
            self._recorder.count(PROCESS_RESTARTS, 1, spec.name)
            for other in tied:
                await other.wait()
            if not await self._may_start_after(spec.name, wait_s):
                return

    def _end_fate_of(self, spec: ChildSpec) -> list[Child]:
        """End who can do nothing without a process that has died; give their lives.

        A death by this hand ends nobody else. A drain ends each when it has nothing left to do.
        """
        was_ended = spec.name in self._ended_by_fate
        self._ended_by_fate.discard(spec.name)
        tied: list[Child] = []
        for name, other in self._specs.items():
            if spec.fate is None or other.fate != spec.fate or name == spec.name:
                continue
            child = self._children.get(name)
            if child is None or self._is_draining:
                continue
            tied.append(child)
            if child.is_running and not was_ended:
                self._ended_by_fate.add(name)
                child.kill()
        return tied

    async def _may_start_after(self, name: str, wait_s: float) -> bool:
        await asyncio.sleep(wait_s)
        return name not in self._ending

    async def _live(self, name: str, child: Child) -> tuple[bool, str]:
        """Run one life to its end; say whether it failed, and how it ended."""
        try:
            await child.start()
        except OSError as error:
            return True, f"{name} cannot be started: {error}"
        status = await child.wait()
        self._aggregate.note(name, child.metrics)
        self._aggregate.end(name)
        detail = child.report.detail if child.report.state in _TELLING_STATES else ""
        detail = detail or self._stuck.pop(name, "")
        return status != 0, f"{name} ended with {_describe(status)}{': ' if detail else ''}{detail}"

    async def _watch(self) -> None:
        """End processes whose loops stand still; a look that is late itself judges nobody."""
        while True:
            looks_at_s = self._clock() + _WATCH_S
            await asyncio.sleep(_WATCH_S)
            if self._clock() - looks_at_s > _WATCH_S:
                continue
            for name, excess in stuck_processes(self._views(), limits=self._limits).items():
                logger.error("process is stuck, ending it", extra={"child": name, "why": excess})
                self._stuck[name] = f"it {excess}"
                self._recorder.count(PROCESS_STUCK, 1, name)
                self._children[name].kill()

    def _note_report(self, name: str, report: Report) -> None:
        self._was_started = self._was_started or self.health().why_not_started is None
        self._listeners.on_report(name, report)

    def _max_early_deaths(self) -> int:
        """Tell how often a process may die young: a set that never worked is not tried again."""
        return _MAX_EARLY_DEATHS if self._was_started else 1

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._failed.set()


def _describe(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
