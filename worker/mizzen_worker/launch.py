"""Owns the process tree of each verb: which processes, with what configuration, told how.

The only file that knows the tree; owns neither supervision nor any process's inside. The launcher
imports no torch and serves the admin port in every role.
"""

import asyncio
import logging
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.config.env import PodEnvironment, process_environment
from mizzen_worker.config.groups import (
    AdminOptions,
    EngineOptions,
    HttpOptions,
    LogOptions,
    ModelOptions,
    WireOptions,
)
from mizzen_worker.config.options import Role
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import FLAG_ADMIN_PORT
from mizzen_worker.detokenizer.settings import DetokenizerSettings
from mizzen_worker.http_api.front_settings import FrontSettings
from mizzen_worker.http_api.server import listen, make_server
from mizzen_worker.ipc.link import check_address
from mizzen_worker.ipc.parent_link import Report
from mizzen_worker.observability.process_log import ProcessLog, is_json_wanted
from mizzen_worker.scheduler.rank_settings import RankSettings
from mizzen_worker.supervision.admin import admin_app
from mizzen_worker.supervision.child import ChildSpec
from mizzen_worker.supervision.progress import Announcer, Progress
from mizzen_worker.supervision.socket_folder import socket_folder
from mizzen_worker.supervision.supervisor import DrainPlan, Supervisor
from mizzen_worker.vocabulary.load import default_model_name, find_gguf

logger = logging.getLogger(__name__)

_RANK, _FRONT, _TEXT = "rank", "front", "detokenizer"
_DRAIN_PLANS = {
    Role.SERVE: DrainPlan(stages=((_FRONT,), (_RANK, _TEXT))),
    Role.TOKENIZER: DrainPlan(stages=((_FRONT,), (_TEXT,))),
    Role.WORKER: DrainPlan(stages=((_RANK,),)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything that was decided before the first process starts."""

    role: Role
    specs: tuple[ChildSpec, ...]
    admin: AdminOptions
    log: ProcessLog
    served_name: str


def plan_launch(
    configuration: Configuration, pod: PodEnvironment, *, socket_folder: Path, instance_id: str
) -> LaunchPlan:
    """Decide the tree; checks paths and addresses, starts nothing; raises ``ConfigError``."""
    role = configuration.role
    model = configuration.group(ModelOptions)
    wire = configuration.group(WireOptions)
    if not model.model.exists():
        msg = (
            f"--model: {model.model} does not exist; give a model folder or a .gguf file"
            " (`make setup` of a source checkout puts a small one under ~/.cache/mizzen/models)"
        )
        raise ConfigError(msg)
    served_name = model.served_model_name or default_model_name(
        find_gguf(model.model) or model.model
    )
    log_options = configuration.group(LogOptions)
    log = ProcessLog(
        level=log_options.log_level,
        is_json=is_json_wanted(log_options.log_format),
        fields=pod.log_fields(),
    )
    tree = _Tree(
        configuration=configuration,
        model=str(model.model),
        served_name=served_name,
        instance_id=pod.instance_id or instance_id,
        socket_folder=socket_folder,
        curve_dir=None if wire.curve_dir is None else str(wire.curve_dir),
        log=log,
    )
    role_to_specs = {
        Role.SERVE: tree.serve,
        Role.WORKER: tree.worker,
        Role.TOKENIZER: tree.tokenizer,
    }
    return LaunchPlan(
        role=role,
        specs=role_to_specs[role](),
        admin=configuration.group(AdminOptions),
        log=log,
        served_name=served_name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Makes the specs of each role."""

    configuration: Configuration
    model: str
    served_name: str
    instance_id: str
    socket_folder: Path
    curve_dir: str | None
    log: ProcessLog

    def serve(self) -> tuple[ChildSpec, ...]:
        listen = f"ipc://{self.socket_folder}/worker"
        return (
            self._rank(listen, is_restarted=True),
            self._text(is_restarted=True),
            self._front((listen,)),
        )

    def worker(self) -> tuple[ChildSpec, ...]:
        wire = self.configuration.group(WireOptions)
        self._check("--listen", wire.listen, wire)
        return (self._rank(wire.listen, is_restarted=False),)

    def tokenizer(self) -> tuple[ChildSpec, ...]:
        wire = self.configuration.group(WireOptions)
        for address in wire.workers:
            self._check("--workers", address, wire)
        return (self._text(is_restarted=False), self._front(wire.workers))

    def _check(self, flag: str, address: str, wire: WireOptions) -> None:
        check_address(
            address,
            flag=flag,
            has_keys=wire.curve_dir is not None,
            is_insecure_allowed=wire.insecure,
        )

    def _rank(self, listen: str, *, is_restarted: bool) -> ChildSpec:
        settings = RankSettings(
            model=self.model,
            served_name=self.served_name,
            instance_id=self.instance_id,
            listen=listen,
            curve_dir=self.curve_dir,
            engine=self.configuration.group(EngineOptions),
            log=self.log,
        )
        return ChildSpec(
            name=_RANK,
            module="mizzen_worker.scheduler.process",
            configuration=settings,
            is_restarted=is_restarted,
        )

    def _text(self, *, is_restarted: bool) -> ChildSpec:
        return ChildSpec(
            name=_TEXT,
            module="mizzen_worker.detokenizer.process",
            configuration=DetokenizerSettings(
                model=self.model, address=self._text_address, log=self.log
            ),
            is_restarted=is_restarted,
        )

    def _front(self, workers: tuple[str, ...]) -> ChildSpec:
        return ChildSpec(
            name=_FRONT,
            module="mizzen_worker.http_api.process",
            configuration=FrontSettings(
                model=self.model,
                served_name=self.served_name,
                instance_id=self.instance_id,
                http=self.configuration.group(HttpOptions),
                workers=workers,
                curve_dir=self.curve_dir,
                detokenizer=self._text_address,
                log=self.log,
            ),
            is_restarted=False,
        )

    @property
    def _text_address(self) -> str:
        return f"ipc://{self.socket_folder}/detokenizer"


def launch(configuration: Configuration, pod: PodEnvironment) -> int:
    """Run a role to its end; give the exit status. Raises ``ConfigError`` before anything runs."""
    with socket_folder() as folder:
        plan = plan_launch(
            configuration, pod, socket_folder=folder, instance_id=secrets.token_hex(8)
        )
        plan.log.start("launcher")
        admin = plan.admin
        listener = listen(admin.admin_host, admin.admin_port, flag=FLAG_ADMIN_PORT)
        return asyncio.run(_run(plan, listener))


async def _run(plan: LaunchPlan, listener: socket.socket) -> int:
    progress = Progress(out=sys.stderr, is_terminal=sys.stderr.isatty() and not plan.log.is_json)
    announcer = Announcer(served_name=plan.served_name, out=sys.stdout)

    def on_report(name: str, report: Report) -> None:
        if name == _RANK:
            progress.note(report)
        if plan.role is Role.SERVE:
            announcer.note(name, report)

    supervisor = Supervisor(
        plan.specs,
        plan=_DRAIN_PLANS[plan.role],
        clock=time.monotonic,
        environment=process_environment(),
        stuck_limit_s=plan.admin.stuck_limit_s,
        on_report=on_report,
    )
    app = admin_app(supervisor, default_deadline_s=plan.admin.drain_deadline_s)
    server = make_server(app, grace_s=1)
    admin = asyncio.create_task(server.serve(sockets=[listener]))
    running = asyncio.create_task(supervisor.run())
    signals = _Signals(supervisor, plan.admin)
    signals.install(asyncio.get_running_loop())
    stopped = asyncio.create_task(signals.stopped.wait())
    try:
        # A drain asked for over the admin port leaves the port up until the signal comes.
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if supervisor.failure is None and not signals.is_abrupt:
            await stopped
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        stopped.cancel()
        server.should_exit = True
        await admin
    if supervisor.failure is not None:
        logger.error("ending", extra={"reason": supervisor.failure})
        return 1
    return 130 if signals.is_abrupt else 0


class _Signals:
    """The first signal drains, the second ends at once."""

    def __init__(self, supervisor: Supervisor, admin: AdminOptions) -> None:
        self._supervisor = supervisor
        self._admin = admin
        self._task: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()
        self.is_abrupt = False

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        else:
            self.is_abrupt = True
            self.stopped.set()

    async def _drain(self) -> None:
        mode = DrainMode(self._admin.drain_mode)
        await self._supervisor.drain(mode, self._admin.drain_deadline_s)
        self.stopped.set()
