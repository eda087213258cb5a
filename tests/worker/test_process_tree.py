"""Which processes a verb runs, told apart from running them."""

from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.env import (
    ENV_NCCL_INTERFACE,
    ENV_VISIBLE_GPUS,
    PodEnvironment,
    read_pod_environment,
)
from mizzen_worker.config.option import Role
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.data_parallel.settings import ControllerSettings
from mizzen_worker.http_api.front_settings import FrontSettings
from mizzen_worker.process_tree import LaunchPlan, plan_launch
from mizzen_worker.scheduler.engine_setup import runner_options
from mizzen_worker.scheduler.rank_settings import FollowerSettings, RankSettings

Kind = TypeVar("Kind")

_TWO_GPUS = ("--data-parallel-size", "2", "--device", "cuda")


def _plan(role: Role, folder: Path, *flags: str, pod: PodEnvironment | None = None) -> LaunchPlan:
    (folder / "tiny.gguf").touch()
    parser = make_parser(role, description="", example="")
    return plan_launch(
        parse_command_line(parser, role, ["--model", str(folder), *flags]),
        pod or read_pod_environment({}),
        socket_folder=Path("/sockets"),
        instance_id="me",
        http_fd=None if role is Role.WORKER else 7,
    )


def _of(plan: LaunchPlan, kind: type[Kind]) -> list[Kind]:
    return [spec.configuration for spec in plan.specs if isinstance(spec.configuration, kind)]


def test_serve_alone_has_one_of_each_and_no_numbers(tmp_path: Path) -> None:
    plan = _plan(Role.SERVE, tmp_path)
    assert {spec.name for spec in plan.specs} == {"rank", "front", "detokenizer"}
    assert plan.drain.stages == (("front",), ("rank", "detokenizer"))
    (front,) = _of(plan, FrontSettings)
    assert front.launcher is None


def test_every_front_reaches_every_rank_and_has_its_own_detokenizer(tmp_path: Path) -> None:
    flags = ("--tokenizer-workers", "2", "--data-parallel-size", "3", "--threads", "7")
    plan = _plan(Role.SERVE, tmp_path, *flags)
    fronts, ranks = _of(plan, FrontSettings), _of(plan, RankSettings)
    assert all(spec.is_restarted for spec in plan.specs)
    assert [rank.listen for rank in ranks] == [f"ipc:///sockets/rank-{i}" for i in range(3)]
    assert [rank.engine.threads for rank in ranks] == [2, 2, 2]
    for front in fronts:
        assert front.workers == tuple(rank.listen for rank in ranks)
        assert front.launcher == "/sockets/admin"
    assert len({front.detokenizer for front in fronts}) == 2
    assert len({front.instance_id for front in fronts}) == 2
    assert {spec.inherited_fds for spec in plan.specs if spec.kind == "front"} == {(7,)}


def test_ranks_of_a_worker_stand_behind_one_router_and_take_a_gpu_each(tmp_path: Path) -> None:
    plan = _plan(Role.WORKER, tmp_path, "--data-parallel-size", "2", "--device", "cuda")
    ranks, (controller,) = _of(plan, RankSettings), _of(plan, ControllerSettings)
    assert [rank.engine.device for rank in ranks] == ["cuda", "cuda"]
    assert controller.ranks == tuple(rank.listen for rank in ranks)
    assert controller.listen == "tcp://127.0.0.1:30001"
    assert plan.drain.stages == (("rank-0", "rank-1"), ("controller",))
    assert {spec.name: spec.is_restarted for spec in plan.specs} == {
        "rank-0": True,
        "rank-1": True,
        "controller": False,
    }


@pytest.mark.parametrize(
    ("flags", "is_restarted"), [((), False), (("--tokenizer-workers", "2"), True)]
)
def test_a_lone_front_of_a_pod_fails_stop(
    tmp_path: Path, flags: tuple[str, ...], *, is_restarted: bool
) -> None:
    plan = _plan(Role.TOKENIZER, tmp_path, *flags)
    assert {spec.is_restarted for spec in plan.specs} == {is_restarted}


@pytest.mark.parametrize(("named", "visible"), [(None, ["0", "1"]), ("5,GPU-a,7", ["5", "GPU-a"])])
def test_each_rank_sees_one_gpu(tmp_path: Path, named: str | None, visible: list[str]) -> None:
    environment = {} if named is None else {ENV_VISIBLE_GPUS: named}
    plan = _plan(Role.SERVE, tmp_path, *_TWO_GPUS, pod=read_pod_environment(environment))
    ranks = [spec.environment for spec in plan.specs if spec.kind == "rank"]
    assert [rank[ENV_VISIBLE_GPUS] for rank in ranks] == visible
    assert not any(spec.environment for spec in plan.specs if spec.kind != "rank")


def test_a_lone_rank_keeps_the_gpus_it_was_given(tmp_path: Path) -> None:
    for flags in (("--device", "cuda"), ("--device", "cuda:1"), ()):
        (rank,) = _plan(Role.WORKER, tmp_path, *flags).specs
        assert rank.environment == {}


_PODS = {
    "MIZZEN_NODE_COUNT": "2",
    "MIZZEN_LEADER_ADDRESS": "group-0.ranks.ns.svc",
    "MIZZEN_GROUP_ID": "group",
    "MIZZEN_GROUP_EPOCH": "7",
}


def _node(rank: int) -> PodEnvironment:
    return read_pod_environment({**_PODS, "MIZZEN_NODE_RANK": str(rank)})


def test_a_group_on_one_machine_meets_at_a_socket_file_and_shares_one_fate(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "4", "--threads", "8", "--rank-heartbeat-limit", "3")
    plan = _plan(Role.SERVE, tmp_path, *flags)
    (rank,), followers = _of(plan, RankSettings), _of(plan, FollowerSettings)
    places = [rank.place, *(one.place for one in followers)]
    assert [place.rank for place in places if place] == [0, 1, 2, 3]
    assert {place.address for place in places if place} == {"ipc:///sockets/rank.ranks"}
    assert {place.heartbeat_limit_s for place in places if place} == {plan.lifeless_limit_s} == {3}
    assert [one.engine.threads for one in (rank, *followers)] == [2] * 4
    group = [spec for spec in plan.specs if spec.fate is not None]
    assert [spec.name for spec in group] == ["rank", "rank.1", "rank.2", "rank.3"]
    assert {spec.fate for spec in group} == {"rank"}
    assert plan.drain.stages[1][:4] == ("rank", "rank.1", "rank.2", "rank.3")
    packet = msgspec.msgpack.encode(followers[0])
    assert msgspec.msgpack.decode(packet, type=FollowerSettings) == followers[0]


def test_copies_of_the_model_are_groups_of_their_own(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "2", "--data-parallel-size", "2", "--device", "cuda")
    plan = _plan(Role.WORKER, tmp_path, *flags)
    names = {spec.name: (spec.fate, spec.environment.get(ENV_VISIBLE_GPUS)) for spec in plan.specs}
    assert names == {
        "rank-0": ("rank-0", "0"),
        "rank-0.1": ("rank-0", "1"),
        "rank-1": ("rank-1", "2"),
        "rank-1.1": ("rank-1", "3"),
        "controller": (None, None),
    }
    addresses = [one.place.address for one in _of(plan, FollowerSettings)]
    assert len(set(addresses)) == 2
    # NCCL's sockets are not for others.
    interfaces = [spec.environment.get(ENV_NCCL_INTERFACE) for spec in plan.specs if spec.fate]
    assert interfaces == ["=lo"] * 4


def test_ranks_of_several_nodes_meet_over_their_network(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "4", "--device", "cuda", "--insecure")
    plan = _plan(Role.WORKER, tmp_path, *flags, pod=_node(1))
    environments = [spec.environment for spec in plan.specs if spec.fate]
    assert environments == [{ENV_VISIBLE_GPUS: "0"}, {ENV_VISIBLE_GPUS: "1"}]


def test_nodes_of_a_group_share_its_ranks_and_meet_at_the_leaders_port(tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "4", "--insecure", "--rank-port", "77")
    first = _plan(Role.WORKER, tmp_path, *flags, pod=_node(0))
    second = _plan(Role.WORKER, tmp_path, *flags, pod=_node(1))
    assert [spec.name for spec in first.specs] == ["rank", "rank.1"]
    assert [spec.name for spec in second.specs] == ["rank.2", "rank.3"]
    assert not any(spec.is_restarted for spec in (*first.specs, *second.specs))
    (place, _) = (one.place for one in _of(second, FollowerSettings))
    assert (place.address, place.group_id, place.epoch, place.size) == (
        "tcp://group-0.ranks.ns.svc:77",
        "group",
        "7",
        4,
    )
    assert second.drain.stages == (("rank.2", "rank.3"),)


@pytest.mark.parametrize(
    ("role", "flags", "sentence"),
    [
        (Role.WORKER, ("--insecure",), r"--tensor-parallel-size: 1 ranks .* by 2 nodes .*MIZZEN"),
        (Role.WORKER, ("--tensor-parallel-size", "3"), r"3 ranks cannot be shared by 2 nodes"),
        (Role.WORKER, ("--tensor-parallel-size", "2"), r"MIZZEN_LEADER_ADDRESS: tcp://.* leaves"),
        (
            Role.WORKER,
            ("--tensor-parallel-size", "2", "--data-parallel-size", "2"),
            r"--data-parallel-size: 2 over 2 nodes .* is not available in this version; give 1",
        ),
        (Role.SERVE, ("--tensor-parallel-size", "2"), r"MIZZEN_NODE_COUNT: 2 nodes are for mizzen"),
    ],
)
def test_groups_that_nodes_cannot_make_up_are_refused(
    tmp_path: Path, role: Role, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _plan(role, tmp_path, *flags, pod=_node(1))


def test_what_a_rank_is_told_arrives(tmp_path: Path) -> None:
    flags = ("--device", "cuda", "--compile-cache", "~/kernels", "--memory-fraction", "0.5")
    (rank,) = _of(_plan(Role.WORKER, tmp_path, *flags), RankSettings)
    packet = msgspec.msgpack.encode(rank)
    assert msgspec.msgpack.decode(packet, type=RankSettings) == rank
    options = runner_options(rank.engine, tmp_path)
    assert options.compile_cache == Path.home() / "kernels"
    assert (options.kv_tokens, options.memory_fraction) == (None, 0.5)
    assert (options.max_slots, options.max_chunk_tokens) == (289, 8192)


def test_fewer_gpus_than_ranks_are_refused(tmp_path: Path) -> None:
    pod = read_pod_environment({ENV_VISIBLE_GPUS: "3"})
    with pytest.raises(ConfigError, match=r"2 ranks take a GPU each, and CUDA_.* names 3; name"):
        _plan(Role.SERVE, tmp_path, *_TWO_GPUS, pod=pod)


def test_one_gpu_for_several_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give cuda, and each rank takes one"):
        _plan(Role.SERVE, tmp_path, "--data-parallel-size", "2", "--device", "cuda:1")


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-key-file"])
def test_key_files_are_read_before_anything_starts(tmp_path: Path, flag: str) -> None:
    keys = tmp_path / "keys"
    with pytest.raises(ConfigError, match=f"{flag}: .* cannot be read"):
        _plan(Role.SERVE, tmp_path, flag, str(keys))
    keys.write_text("short\n")
    with pytest.raises(ConfigError, match=f"{flag}: key 1 of .* is shorter than 16 characters"):
        _plan(Role.SERVE, tmp_path, flag, str(keys))
