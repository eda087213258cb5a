"""Owns the launcher: binds the ports, runs the process tree of a verb, ends it on a signal.

Which processes these are is ``process_tree``'s; supervision watches them. The launcher imports no
torch and serves the admin routes in every role.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import sys
import time
from functools import partial

from mizzen_worker.config.env import PodEnvironment, process_environment
from mizzen_worker.config.groups import AdminOptions, HttpOptions
from mizzen_worker.config.option import Role
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.operator_names import FLAG_ADMIN_PORT, FLAG_HTTP_PORT
from mizzen_worker.http_api.server import listen, listen_privately, make_server
from mizzen_worker.ipc.parent_link import Report
from mizzen_worker.process_tree import LaunchPlan, plan_launch
from mizzen_worker.supervision.admin import admin_app
from mizzen_worker.supervision.health import SilenceLimits
from mizzen_worker.supervision.pod_control import KIND_FOLLOWER, KIND_FRONT, KIND_RANK, PodControl
from mizzen_worker.supervision.progress import Announcer, Progress
from mizzen_worker.supervision.socket_folder import socket_folder
from mizzen_worker.supervision.supervisor import Listeners, Supervisor

logger = logging.getLogger(__name__)


def launch(configuration: Configuration, pod: PodEnvironment) -> int:
    """Run a role to its end; give the exit status. Raises ``ConfigError`` before anything runs."""
    with socket_folder() as folder, contextlib.ExitStack() as stack:
        public: socket.socket | None = None
        if configuration.role is not Role.WORKER:
            http = configuration.group(HttpOptions)
            public = stack.enter_context(
                listen(http.http_host, http.http_port, flag=FLAG_HTTP_PORT)
            )
        plan = plan_launch(
            configuration,
            pod,
            socket_folder=folder,
            instance_id=secrets.token_hex(8),
            http_fd=None if public is None else public.fileno(),
        )
        plan.log.start("launcher")
        admin = plan.admin
        listener = listen(admin.admin_host, admin.admin_port, flag=FLAG_ADMIN_PORT)
        return asyncio.run(_run(plan, listener, public))


async def _run(plan: LaunchPlan, listener: socket.socket, public: socket.socket | None) -> int:
    progress = Progress(out=sys.stderr, is_terminal=sys.stderr.isatty() and not plan.log.is_json)
    announcer = Announcer(served_name=plan.served_name, out=sys.stdout)
    kinds = {spec.name: spec.kind for spec in plan.specs}

    def on_report(name: str, report: Report) -> None:
        if kinds[name] in {KIND_RANK, KIND_FOLLOWER}:
            progress.note(name, report)
        elif kinds[name] == KIND_FRONT and plan.role is Role.SERVE:
            announcer.note(report)

    def on_drain() -> None:
        # The fronts have the socket too, and nobody is left to take connections after them.
        if public is not None:
            public.close()

    supervisor = Supervisor(
        plan.specs,
        plan=plan.drain,
        clock=time.monotonic,
        environment=process_environment(),
        limits=SilenceLimits(
            running_s=plan.admin.stuck_limit_s,
            loading_s=plan.admin.loading_limit_s,
            lifeless_s=plan.lifeless_limit_s,
        ),
        listeners=Listeners(on_report=on_report, on_drain=on_drain),
    )
    control = PodControl(
        processes=supervisor,
        has_fronts=KIND_FRONT in kinds.values(),
        has_ranks=KIND_RANK in kinds.values(),
        served_name=plan.served_name,
        started_at=int(time.time()),  # noqa: TID251 - the edge where wall-clock time enters
    )
    make_app = partial(
        admin_app,
        supervisor,
        control,
        default_mode=DrainMode(plan.admin.drain_mode),
        default_deadline_s=plan.admin.drain_deadline_s,
    )
    private = listen_privately(plan.admin_socket)
    servers = [
        (make_server(make_app(), grace_s=1), listener),
        (make_server(make_app(is_private=True), grace_s=1), private),
    ]
    serving = [asyncio.create_task(server.serve(sockets=[bound])) for server, bound in servers]
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
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*serving)
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
