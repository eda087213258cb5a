"""Owns which processes compute on a node: ranks that decide, and followers; starts none of them.

A copy of the model is one rank, or a tensor-parallel group of them: the one that decides, and
followers that nobody else talks to. Of a group over several nodes, each runs its share of the ranks
and only the first has the one that decides.
"""

from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from mizzen_worker.config.env import ENV_NCCL_INTERFACE, ENV_VISIBLE_GPUS, PodEnvironment
from mizzen_worker.config.groups import EngineOptions, RankOptions
from mizzen_worker.config.option import Role
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import (
    ENV_NODE_COUNT,
    FLAG_DATA_PARALLEL,
    FLAG_DEVICE,
    FLAG_TENSOR_PARALLEL,
)
from mizzen_worker.observability.process_log import ProcessLog
from mizzen_worker.observability.tracing import TraceSettings
from mizzen_worker.rank_group.place import RankPlace, local_ranks
from mizzen_worker.scheduler.rank_settings import FollowerSettings, RankSettings, rank_share
from mizzen_worker.supervision.child import ChildSpec
from mizzen_worker.supervision.pod_control import KIND_FOLLOWER, KIND_RANK


def node_ranks(role: Role, engine: EngineOptions, pod: PodEnvironment) -> range:
    """Say which ranks of each group this node runs; raises ``ConfigError``."""
    _check_nodes(role, engine, pod)
    ranks = local_ranks(engine.tensor_parallel_size, nodes=pod.node_count, node_rank=pod.node_rank)
    _check_device(engine, pod.visible_gpus, num_ranks=engine.data_parallel_size * len(ranks))
    return ranks


def numbered_names(kind: str, count: int) -> tuple[str, ...]:
    """Name processes of a kind; a lone one has no number."""
    return (kind,) if count == 1 else tuple(f"{kind}-{number}" for number in range(count))


def process_log(log: ProcessLog, name: str) -> ProcessLog:
    """How one process logs: with its name on each line."""
    return structs.replace(log, fields={**log.fields, "process": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTree:
    """Makes the specs of a node's ranks."""

    model: str
    skip_tokenizer: bool
    served_name: str
    instance_id: str
    socket_folder: Path
    curve_dir: str | None
    log: ProcessLog
    trace: TraceSettings | None
    engine: EngineOptions
    options: RankOptions
    pod: PodEnvironment
    local_ranks: range
    """Ranks of each group that this node runs."""

    def specs(self, listen: tuple[str, ...], *, is_restarted: bool) -> tuple[ChildSpec, ...]:
        """A rank for each address, or the node's share of a group in its place."""
        names = numbered_names(KIND_RANK, len(listen))
        return tuple(
            self._rank(name, address, data_rank, rank, is_restarted=is_restarted)
            for data_rank, (name, address) in enumerate(zip(names, listen, strict=True))
            for rank in self.local_ranks
        )

    def _rank(
        self, leader: str, listen: str, data_rank: int, rank: int, *, is_restarted: bool
    ) -> ChildSpec:
        num_local = self.engine.data_parallel_size * len(self.local_ranks)
        engine = rank_share(self.engine, rank=data_rank, num_ranks=num_local)
        size = self.engine.tensor_parallel_size
        place = self._place(leader, rank) if size > 1 else None
        name = leader if rank == 0 else f"{leader}.{rank}"
        settings: RankSettings | FollowerSettings
        if rank == 0:
            settings = RankSettings(
                model=self.model,
                skip_tokenizer=self.skip_tokenizer,
                served_name=self.served_name,
                instance_id=self.instance_id,
                listen=listen,
                curve_dir=self.curve_dir,
                engine=engine,
                log=process_log(self.log, name),
                trace=self.trace,
                num_local_ranks=num_local,
                place=place,
            )
        else:
            assert place is not None
            settings = FollowerSettings(
                model=self.model,
                curve_dir=self.curve_dir,
                engine=engine,
                log=process_log(self.log, name),
                num_local_ranks=num_local,
                place=place,
            )
        number = data_rank * len(self.local_ranks) + rank - self.local_ranks.start
        return ChildSpec(
            name=name,
            kind=KIND_RANK if rank == 0 else KIND_FOLLOWER,
            module=f"mizzen_worker.scheduler.{'process' if rank == 0 else 'follower_process'}",
            configuration=settings,
            is_restarted=is_restarted,
            environment=self._environment_of(number, num_local, engine),
            fate=None if place is None else leader,
        )

    def _place(self, leader: str, rank: int) -> RankPlace:
        is_alone = self.pod.node_count == 1
        return RankPlace(
            rank=rank,
            size=self.engine.tensor_parallel_size,
            group_id=f"{self.instance_id}/{leader}" if is_alone else self.pod.group_id,
            epoch="" if is_alone else self.pod.group_epoch,
            address=f"ipc://{self.socket_folder}/{leader}.ranks"
            if is_alone
            else self.leader_address,
            host=self.options.rank_host or "",
            rendezvous_timeout_s=self.options.rendezvous_timeout_s,
            heartbeat_limit_s=self.options.rank_heartbeat_limit_s,
        )

    @property
    def leader_address(self) -> str:
        """Where the first node's leader lets the ranks of other nodes in."""
        host = self.pod.leader_address
        shown = f"[{host}]" if ":" in host else host
        return f"tcp://{shown}:{self.options.rank_port}"

    def _environment_of(self, number: int, num_ranks: int, engine: EngineOptions) -> dict[str, str]:
        """Which GPU one of several ranks sees: CUDA must know before it is loaded.

        NCCL is told interfaces, not addresses: on one machine it would meet at one that others
        reach.
        """
        if engine.device != "cuda":
            return {}
        environment = {}
        if num_ranks > 1:
            names = self.pod.visible_gpus
            environment[ENV_VISIBLE_GPUS] = str(number) if names is None else names[number]
        if engine.tensor_parallel_size > 1 and self.pod.node_count == 1:
            environment[ENV_NCCL_INTERFACE] = "=lo"
        return environment


def _check_nodes(role: Role, engine: EngineOptions, pod: PodEnvironment) -> None:
    if pod.node_count == 1:
        return
    if role is not Role.WORKER:
        msg = (
            f"{ENV_NODE_COUNT}: {pod.node_count} nodes are for mizzen worker; {role.value} has one"
        )
        raise ConfigError(msg)
    if engine.data_parallel_size > 1:
        msg = (
            f"{FLAG_DATA_PARALLEL}: {engine.data_parallel_size} over {pod.node_count} nodes"
            f" ({ENV_NODE_COUNT}) is not available in this version; give 1"
        )
        raise ConfigError(msg)


def _check_device(
    engine: EngineOptions, visible_gpus: tuple[str, ...] | None, *, num_ranks: int
) -> None:
    flag = FLAG_TENSOR_PARALLEL if engine.data_parallel_size == 1 else FLAG_DATA_PARALLEL
    is_short = visible_gpus is not None and len(visible_gpus) < num_ranks
    if num_ranks > 1 and engine.device == "cuda" and is_short:
        msg = (
            f"{flag}: {num_ranks} ranks take a GPU each, and {ENV_VISIBLE_GPUS} names"
            f" {','.join(visible_gpus or ()) or 'none'}; name more of them or lower the flag"
        )
        raise ConfigError(msg)
    if num_ranks > 1 and engine.device.startswith("cuda:"):
        msg = (
            f"{FLAG_DEVICE}: {engine.device} is one GPU and {flag} makes {num_ranks} ranks; give"
            " cuda, and each rank takes one"
        )
        raise ConfigError(msg)
