"""Rendered groups mean to the worker what they mean to the operator: who runs which ranks, where
the leader is, and which shapes there are.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.lws_pods import pods_of

from mizzen_operator.render.leader_worker_set import leader_worker_set
from mizzen_operator.render.render import rendered_worker_group
from mizzen_operator.render.wiring import RankPod, rank_pods
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.scale import RoleScale
from mizzen_operator.spec.validate import validate
from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.env import PodEnvironment, read_pod_environment
from mizzen_worker.config.groups import EngineOptions, RankOptions
from mizzen_worker.config.option import Role
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.rank_tree import node_ranks

SHAPES = tuple(product(range(1, 9), range(1, 5), range(1, 5)))
"""Tensor, data, nodes."""
TWO_GROUPS = RoleScale(asked=2, propagated=2)


def _service(topology: str, tensor: int, data: int, nodes: int) -> Resolved:
    parallelism = {"tensor": tensor, "data": data, "nodes": nodes}
    return resolved(topology=topology, worker={"parallelism": parallelism})


def _is_accepted(service: Resolved) -> bool:
    return not validate(
        InferenceService(
            name=service.name,
            namespace=service.namespace,
            uid=service.uid,
            generation=service.generation,
            spec=service.spec,
        )
    )


def _container(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _configuration(container: dict[str, Any]) -> Configuration:
    role = Role(container["command"][1])
    parser = make_parser(role, description="test", example="test")
    return parse_command_line(parser, role, tuple(container["args"]))


def _environment(container: dict[str, Any], pod: RankPod) -> PodEnvironment:
    """What the worker reads in one pod, as the kubelet fills it in."""
    fields = {
        "metadata.labels['apps.kubernetes.io/pod-index']": pod.name.rpartition("-")[2],
        "metadata.annotations['serving.mizzen.dev/epoch']": "0",
        "metadata.uid": "uid",
    }
    return read_pod_environment(
        {
            item["name"]: item["value"]
            if "value" in item
            else fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
            for item in container["env"]
        }
    )


@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_the_worker_takes_exactly_the_shapes_that_admission_lets_through(topology: str) -> None:
    for shape in SHAPES:
        service = _service(topology, *shape)
        group = rendered_worker_group(service, 0)
        container = _container(group)
        configuration = _configuration(container)
        engine = configuration.group(EngineOptions)
        for pod in rank_pods(group) if _is_accepted(service) else ():
            environment = _environment(container, pod)
            assert node_ranks(configuration.role, engine, environment) == pod.ranks
            options = configuration.group(RankOptions)
            assert pod.leader == f"{environment.leader_address}:{options.rank_port}"
        if not _is_accepted(service):
            first = RankPod(name="demo-0", labels={}, ranks=range(1), num_nodes=1, leader="")
            environment = _environment(container, first)
            with pytest.raises(ConfigError):
                node_ranks(configuration.role, engine, environment)


@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_the_worker_finds_the_same_place_in_a_leader_worker_set(topology: str) -> None:
    """Its leader is reached by the name that the set's own Service gives to the first pod."""
    shapes = [shape for shape in SHAPES if _is_accepted(_service(topology, *shape))]
    assert shapes
    for shape in shapes:
        service = _service(topology, *shape)
        lws = leader_worker_set(replace(service, worker_scale=TWO_GROUPS), surge=0, unavailable=1)
        template = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        configuration = _configuration(_container({"spec": {"template": template}}))
        engine = configuration.group(EngineOptions)
        places = {}
        for pod in pods_of(lws):
            environment = read_pod_environment(pod.variables)
            ranks = node_ranks(configuration.role, engine, environment)
            assert ranks == rank_pods(rendered_worker_group(service, 0))[pod.index].ranks
            assert environment.leader_address == f"demo-worker-{pod.group}.demo-worker.default"
            assert environment.group_epoch == "0"
            places[pod.name] = environment.group_id
        assert len(places) == 2 * service.nodes
        assert len(set(places.values())) == 2
