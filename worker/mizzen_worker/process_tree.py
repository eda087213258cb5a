"""Owns which processes each verb runs, with what configuration; starts none of them.

A front is an HTTP server with its own detokenizer: the two share no bottleneck with other fronts,
and one that dies takes nothing of theirs along. All fronts accept from one listening socket, which
the launcher holds: connections that wait there are taken by whoever lives. A worker with several
ranks has a controller in front of them; ``serve``'s fronts reach every rank themselves. Each rank
may be a group of processes, which is ``rank_tree``'s.
"""

from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.config.env import PodEnvironment
from mizzen_worker.config.groups import (
    AdminOptions,
    EngineOptions,
    HttpOptions,
    LogOptions,
    ModelOptions,
    RankOptions,
    WireOptions,
)
from mizzen_worker.config.option import Role
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import (
    ENV_LEADER_ADDRESS,
    FLAG_LISTEN,
    FLAG_WORKERS,
)
from mizzen_worker.data_parallel.settings import ControllerSettings
from mizzen_worker.detokenizer.settings import DetokenizerSettings
from mizzen_worker.http_api.access import read_access_keys
from mizzen_worker.http_api.front_settings import FrontSettings
from mizzen_worker.ipc.link import check_address, rank_events_address, replay_address
from mizzen_worker.observability.process_log import ProcessLog, is_json_wanted
from mizzen_worker.observability.tracing import TraceSettings, check_tracing
from mizzen_worker.rank_tree import RankTree, node_ranks, numbered_names, process_log
from mizzen_worker.supervision.child import ChildSpec
from mizzen_worker.supervision.pod_control import (
    KIND_CONTROLLER,
    KIND_FOLLOWER,
    KIND_FRONT,
    KIND_RANK,
)
from mizzen_worker.supervision.supervisor import DrainPlan
from mizzen_worker.vocabulary.model_path import default_model_name, find_gguf

_KIND_TEXT = "detokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything that was decided before the first process starts."""

    role: Role
    specs: tuple[ChildSpec, ...]
    drain: DrainPlan
    admin: AdminOptions
    log: ProcessLog
    served_name: str
    admin_socket: Path
    lifeless_limit_s: float
    """For processes of which others depend on their not being frozen."""


def plan_launch(
    configuration: Configuration,
    pod: PodEnvironment,
    *,
    socket_folder: Path,
    instance_id: str,
    http_fd: int | None,
) -> LaunchPlan:
    """Decide the tree; checks paths and addresses, starts nothing; raises ``ConfigError``.

    ``http_fd`` is the public port's listening socket, in a role that has one.
    """
    role = configuration.role
    model = configuration.group(ModelOptions)
    wire = configuration.group(WireOptions)
    if not model.model.exists():
        msg = (
            f"--model: {model.model} does not exist; give a model folder or a .gguf file"
            " (`make setup` of a source checkout puts a small one under ~/.cache/mizzen/models)"
        )
        raise ConfigError(msg)
    if role is not Role.WORKER:
        http = configuration.group(HttpOptions)
        read_access_keys(http.api_key_file, http.admin_key_file)  # each front keeps its own
    engine = configuration.group(EngineOptions)
    ranks = node_ranks(role, engine, pod)
    if engine.cache_events is not None:
        _check_events(engine.cache_events, wire, engine.data_parallel_size)
    served_name = model.served_model_name or default_model_name(
        find_gguf(model.model) or model.model
    )
    log_options = configuration.group(LogOptions)
    if log_options.trace_endpoint is not None:
        check_tracing()
    log = ProcessLog(
        level=log_options.log_level,
        is_json=is_json_wanted(log_options.log_format),
        fields=pod.log_fields(),
    )
    tree = _Tree(
        configuration=configuration,
        model=str(model.model),
        skip_tokenizer=model.skip_tokenizer,
        served_name=served_name,
        instance_id=pod.instance_id or instance_id,
        socket_folder=socket_folder,
        curve_dir=None if wire.curve_dir is None else str(wire.curve_dir),
        log=log,
        http_fd=http_fd,
        pod=pod,
        local_ranks=ranks,
    )
    role_to_specs = {
        Role.SERVE: tree.serve,
        Role.WORKER: tree.worker,
        Role.TOKENIZER: tree.tokenizer,
    }
    specs = role_to_specs[role]()
    return LaunchPlan(
        role=role,
        specs=specs,
        drain=_drain_plan(specs),
        admin=configuration.group(AdminOptions),
        log=log,
        served_name=served_name,
        admin_socket=tree.admin_socket,
        lifeless_limit_s=configuration.group(RankOptions).rank_heartbeat_limit_s,
    )


def _check_events(address: str, wire: WireOptions, num_ranks: int) -> None:
    check_address(
        address,
        flag="--cache-events",
        has_keys=wire.curve_dir is not None,
        is_insecure_allowed=wire.insecure,
    )
    replay_address(rank_events_address(address, num_ranks - 1))


def _drain_plan(specs: tuple[ChildSpec, ...]) -> DrainPlan:
    """Fronts end before what they stand on, a controller after ranks whose last words it passes."""
    kinds = ({KIND_FRONT}, {KIND_RANK, KIND_FOLLOWER, _KIND_TEXT}, {KIND_CONTROLLER})
    stages = (tuple(spec.name for spec in specs if spec.kind in stage) for stage in kinds)
    return DrainPlan(stages=tuple(stage for stage in stages if stage))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """Makes the specs of each role."""

    configuration: Configuration
    model: str
    skip_tokenizer: bool
    served_name: str
    instance_id: str
    socket_folder: Path
    curve_dir: str | None
    log: ProcessLog
    http_fd: int | None
    pod: PodEnvironment
    local_ranks: range

    def serve(self) -> tuple[ChildSpec, ...]:
        num_ranks = self.configuration.group(EngineOptions).data_parallel_size
        addresses = tuple(self._address(name) for name in numbered_names(KIND_RANK, num_ranks))
        return (
            *self._rank_tree().specs(addresses, is_restarted=True),
            *self._fronts(addresses, is_restarted=True),
        )

    def worker(self) -> tuple[ChildSpec, ...]:
        wire = self.configuration.group(WireOptions)
        self._check(FLAG_LISTEN, wire.listen, wire)
        ranks = self._rank_tree()
        if self.pod.node_count > 1:
            self._check(ENV_LEADER_ADDRESS, ranks.leader_address, wire)
        num_ranks = self.configuration.group(EngineOptions).data_parallel_size
        if num_ranks == 1:
            return ranks.specs((wire.listen,), is_restarted=False)
        # Each rank is a copy of the model for itself: the others' streams go on without it.
        addresses = tuple(self._address(name) for name in numbered_names(KIND_RANK, num_ranks))
        return (
            *ranks.specs(addresses, is_restarted=True),
            self._controller(wire.listen, addresses),
        )

    def tokenizer(self) -> tuple[ChildSpec, ...]:
        wire = self.configuration.group(WireOptions)
        for address in wire.workers:
            self._check(FLAG_WORKERS, address, wire)
        # One of several is started again: ending the pod would cut the streams of the others.
        num_fronts = self.configuration.group(HttpOptions).tokenizer_workers
        return self._fronts(wire.workers, is_restarted=num_fronts > 1)

    @property
    def admin_socket(self) -> Path:
        """Where the launcher's own front processes reach its admin routes."""
        return self.socket_folder / "admin"

    def _check(self, flag: str, address: str, wire: WireOptions) -> None:
        check_address(
            address,
            flag=flag,
            has_keys=wire.curve_dir is not None,
            is_insecure_allowed=wire.insecure,
        )

    def _rank_tree(self) -> RankTree:
        return RankTree(
            model=self.model,
            skip_tokenizer=self.skip_tokenizer,
            served_name=self.served_name,
            instance_id=self.instance_id,
            socket_folder=self.socket_folder,
            curve_dir=self.curve_dir,
            log=self.log,
            trace=self._trace(),
            engine=self.configuration.group(EngineOptions),
            options=self.configuration.group(RankOptions),
            pod=self.pod,
            local_ranks=self.local_ranks,
        )

    def _controller(self, listen: str, ranks: tuple[str, ...]) -> ChildSpec:
        return ChildSpec(
            name=KIND_CONTROLLER,
            kind=KIND_CONTROLLER,
            module="mizzen_worker.data_parallel.process",
            configuration=ControllerSettings(
                instance_id=self.instance_id,
                listen=listen,
                curve_dir=self.curve_dir,
                ranks=ranks,
                log=self._log_of(KIND_CONTROLLER),
            ),
            is_restarted=False,
        )

    def _fronts(self, workers: tuple[str, ...], *, is_restarted: bool) -> tuple[ChildSpec, ...]:
        num_fronts = self.configuration.group(HttpOptions).tokenizer_workers
        names = zip(
            numbered_names(KIND_FRONT, num_fronts),
            numbered_names(_KIND_TEXT, num_fronts),
            strict=True,
        )
        specs: list[ChildSpec] = []
        for front, text in names:
            specs.append(self._text(text, is_restarted=is_restarted))
            specs.append(self._front(front, text, workers, is_restarted=is_restarted))
        return tuple(specs)

    def _text(self, name: str, *, is_restarted: bool) -> ChildSpec:
        return ChildSpec(
            name=name,
            kind=_KIND_TEXT,
            module="mizzen_worker.detokenizer.process",
            configuration=DetokenizerSettings(
                model=self.model,
                skip_tokenizer=self.skip_tokenizer,
                address=self._address(name),
                log=self._log_of(name),
            ),
            is_restarted=is_restarted,
        )

    def _front(
        self, name: str, text: str, workers: tuple[str, ...], *, is_restarted: bool
    ) -> ChildSpec:
        assert self.http_fd is not None
        is_one_of_several = self.configuration.group(HttpOptions).tokenizer_workers > 1
        return ChildSpec(
            name=name,
            kind=KIND_FRONT,
            module="mizzen_worker.http_api.process",
            configuration=FrontSettings(
                model=self.model,
                skip_tokenizer=self.skip_tokenizer,
                served_name=self.served_name,
                instance_id=f"{self.instance_id}/{name}",
                http=self.configuration.group(HttpOptions),
                http_fd=self.http_fd,
                workers=workers,
                curve_dir=self.curve_dir,
                detokenizer=self._address(text),
                launcher=str(self.admin_socket) if is_one_of_several else None,
                log=self._log_of(name),
                trace=self._trace(),
            ),
            is_restarted=is_restarted,
            inherited_fds=(self.http_fd,),
        )

    def _trace(self) -> TraceSettings | None:
        log = self.configuration.group(LogOptions)
        if log.trace_endpoint is None:
            return None
        return TraceSettings(endpoint=log.trace_endpoint, sampling=log.trace_sampling)

    def _log_of(self, name: str) -> ProcessLog:
        return process_log(self.log, name)

    def _address(self, name: str) -> str:
        return f"ipc://{self.socket_folder}/{name}"
