"""Which processes a verb runs, told apart from running them."""

from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.env import (
    ENV_VISIBLE_GPUS,
    PodEnvironment,
    read_pod_environment,
)
from mizzen_worker.config.options import Role
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.data_parallel.settings import ControllerSettings
from mizzen_worker.http_api.front_settings import FrontSettings
from mizzen_worker.process_tree import LaunchPlan, plan_launch
from mizzen_worker.scheduler.engine_setup import runner_options
from mizzen_worker.scheduler.rank_settings import RankSettings

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
