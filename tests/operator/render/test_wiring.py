"""Ranks of every accepted shape find each other, every other shape is refused with the reason, and
each break of what was rendered is found.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from tests.operator.documents import DEFAULTS, resolved
from tests.operator.spec.rule_examples import document

from mizzen_operator.render import preflight
from mizzen_operator.render.preflight import wiring_problems
from mizzen_operator.render.reachability import allows
from mizzen_operator.render.render import FormerGroup, RenderContext, render
from mizzen_operator.render.wiring import rank_pods, wiring_faults
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Resolved, resolve
from mizzen_operator.spec.validate import validate

GPU = "nvidia.com/gpu"
TWO_GROUPS = RenderContext(groups=(0, 1))
SIZES = tuple(product(range(1, 9), (1, 2), range(1, 5), range(1, 5)))
"""Tensor, pipeline, data, nodes."""
Objects = list[dict[str, Any]]


def shape(
    sizes: tuple[int, int, int, int], *, topology: str, gpus_per_pod: int, policy: str
) -> dict[str, Any]:
    names = ("tensor", "pipeline", "data", "nodes")
    worker = {
        "parallelism": dict(zip(names, sizes, strict=True)),
        "gpu": {"countPerNode": gpus_per_pod},
    }
    return document(
        {
            "metadata": {"uid": "u", "generation": 1},
            "spec": {
                "topology": topology,
                "replicas": 2,
                "worker": worker,
                "networkPolicy": policy,
            },
        }
    )


def shapes() -> Iterator[tuple[tuple[int, int, int, int], dict[str, Any]]]:
    for sizes in SIZES:
        tensor, pipeline, data, nodes = sizes
        for gpus_per_pod in sorted({0, min(16, tensor * pipeline * data // nodes)}):
            for topology, policy in product(("Unified", "Split"), ("Restricted", "Off")):
                yield (
                    sizes,
                    shape(sizes, topology=topology, gpus_per_pod=gpus_per_pod, policy=policy),
                )


def test_row_26_every_accepted_shape_is_wired_and_every_refused_one_says_why() -> None:
    accepted: set[tuple[int, int, int, int]] = set()
    for (tensor, pipeline, data, nodes), body in shapes():
        service = parse(body)
        problems = validate(service)
        if problems:
            assert all(problem.field.startswith("spec.worker.") for problem in problems)
            assert all(problem.message and problem.remedy for problem in problems)
            continue
        accepted.add((tensor, pipeline, data, nodes))
        one = resolve(service, DEFAULTS)
        assert wiring_problems(one) == []
        objects = list(render(one, TWO_GROUPS))
        assert wiring_faults(objects, GPU) == []
        for group in (obj for obj in objects if obj["kind"] == "StatefulSet"):
            ranks = [rank for pod in rank_pods(group) for rank in pod.ranks]
            assert (len(rank_pods(group)), ranks) == (nodes, list(range(tensor)))
    wanted = {
        (tensor, pipeline, data, nodes)
        for tensor, pipeline, data, nodes in SIZES
        if pipeline == 1 and tensor % nodes == 0 and (nodes == 1 or data == 1)
    }
    assert accepted == wanted


def test_the_reason_of_a_refusal_is_its_own() -> None:
    def reasons(*sizes: int, topology: str = "Split", gpus_per_pod: int = 0) -> list[str]:
        tensor, pipeline, data, nodes = sizes
        body = shape(
            (tensor, pipeline, data, nodes),
            topology=topology,
            gpus_per_pod=gpus_per_pod,
            policy="Off",
        )
        return [problem.sentence() for problem in validate(parse(body))]

    assert reasons(2, 1, 1, 2) == []
    assert reasons(3, 1, 1, 2) == [
        "spec.worker.parallelism.nodes: each pod of a group runs the same number of tensor parallel"
        " ranks, so nodes must divide tensor (found 2); set tensor to a multiple of nodes"
    ]
    assert reasons(2, 1, 1, 2, gpus_per_pod=1) == []
    (unified,) = reasons(2, 1, 1, 2, topology="Unified")
    assert "groups of several pods are not available in this version in other topo" in unified
    (data,) = reasons(2, 1, 2, 2)
    assert "data parallel ranks over several pods are not available in this version" in data
    (pipeline,) = reasons(1, 2, 1, 1)
    assert "pipeline stages are not available in this version" in pipeline


def group_of_three(**spec: Any) -> Resolved:
    worker = {"parallelism": {"tensor": 6, "nodes": 3}}
    return resolved(topology="Split", replicas=2, worker=worker, **spec)


def _first(objects: Objects, kind: str, part: str) -> dict[str, Any]:
    return next(obj for obj in objects if obj["kind"] == kind and part in obj["metadata"]["name"])


def _set(objects: Objects) -> dict[str, Any]:
    return _first(objects, "StatefulSet", "-w-")


def _ranks_service(objects: Objects) -> dict[str, Any]:
    return next(obj for obj in objects if obj["metadata"]["name"] == _name(objects))


def _name(objects: Objects) -> str:
    name: str = _set(objects)["spec"]["serviceName"]
    return name


def _container(objects: Objects) -> dict[str, Any]:
    container: dict[str, Any] = _set(objects)["spec"]["template"]["spec"]["containers"][0]
    return container


def _variable(objects: Objects, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        item for item in _container(objects)["env"] if item["name"] == name
    )
    return found


def _flag_to(objects: Objects, flag: str, value: str) -> None:
    args = _container(objects)["args"]
    args[args.index(flag) + 1] = value


def _policy_of_group(objects: Objects) -> dict[str, Any]:
    return _first(objects, "NetworkPolicy", "-w-")["spec"]  # type: ignore[no-any-return]


BREAKS: dict[str, tuple[Callable[[Objects], object], str]] = {
    "a pod too few": (
        lambda objects: _set(objects)["spec"].update(replicas=2),
        "has 2 pods, which are told that there are 3, 3",
    ),
    "a fixed rank": (
        lambda objects: _variable(objects, "MIZZEN_NODE_RANK").update(value="1"),
        "run ranks [2, 3, 2, 3, 2, 3] and not each of 0 to 5 once",
    ),
    "a size that nodes do not divide": (
        lambda objects: _flag_to(objects, "--tensor-parallel-size", "7"),
        "and not each of 0 to 6 once",
    ),
    "pods in turn": (
        lambda objects: _set(objects)["spec"].update(podManagementPolicy="OrderedReady"),
        "are made one after the other",
    ),
    "another leader": (
        lambda objects: _variable(objects, "MIZZEN_LEADER_ADDRESS").update(value="elsewhere"),
        "look for their leader at elsewhere:30003 and not at demo-w-",
    ),
    "no Service": (
        lambda objects: objects.remove(_ranks_service(objects)),
        "which does not exist",
    ),
    "names of ready pods only": (
        lambda objects: _ranks_service(objects)["spec"].pop("publishNotReadyAddresses"),
        "names pods of demo-w-",
    ),
    "a Service of others": (
        lambda objects: _ranks_service(objects)["spec"]["selector"].update(a="b"),
        "does not select all pods of",
    ),
    "a Service without the port": (
        lambda objects: _ranks_service(objects)["spec"]["ports"].pop(),
        "does not lead to port 30003",
    ),
    "another port": (
        lambda objects: _flag_to(objects, "--rank-port", "30004"),
        "does not lead to port 30004",
    ),
    "no keys": (
        lambda objects: _container(objects)["args"].remove("--curve-dir"),
        "have no keys to prove themselves with",
    ),
    "GPUs that nobody uses": (
        lambda objects: _container(objects)["resources"].update(limits={GPU: "1"}),
        "3 pods with 1 GPUs each, and 6 ranks on the CPU",
    ),
    "no policy for ranks": (
        lambda objects: objects.remove(_first(objects, "NetworkPolicy", "-w-")),
        "policies keep demo-w-",
    ),
    "no way out": (
        lambda objects: _policy_of_group(objects).update(egress=[]),
        "policies keep demo-w-",
    ),
    "ranks open to all": (
        lambda objects: _policy_of_group(objects).update(ingress=[{}]),
        "policies let a pod of somebody else reach ports [30003, 40000, 30001]",
    ),
    "ranks open to other groups": (
        lambda objects: [
            obj["spec"][way][-1][key][0]["podSelector"]["matchLabels"].pop(
                "serving.mizzen.dev/group", None
            )
            for obj in objects
            if obj["kind"] == "NetworkPolicy" and "-w-" in obj["metadata"]["name"]
            for way, key in (("ingress", "from"), ("egress", "to"))
        ],
        "policies let worker reach ports [30003, 40000",
    ),
    "tokenizers at followers": (
        lambda objects: _first(objects, "NetworkPolicy", "-tokenizer")["spec"]["egress"][1]["to"][
            0
        ]["podSelector"]["matchLabels"].pop("apps.kubernetes.io/pod-index"),
        "policies let tokenizer reach ports [30001]",
    ),
    "tokenizers kept out": (
        lambda objects: _first(objects, "NetworkPolicy", "-worker")["spec"].update(ingress=[]),
        "policies keep tokenizers from port 30001",
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_each_break_is_found(what: str) -> None:
    objects = copy.deepcopy(list(render(group_of_three(), TWO_GROUPS)))
    assert wiring_faults(objects, GPU) == []
    breaking, said = BREAKS[what]
    breaking(objects)
    assert any(said in fault for fault in wiring_faults(objects, GPU)), wiring_faults(objects, GPU)


def test_a_fault_of_the_operator_is_told_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "wiring_faults", lambda *_: ["ranks do not meet"])
    (problem,) = wiring_problems(group_of_three())
    assert problem.reason == "WiringFault"
    assert "ranks do not meet; this is a fault of this release" in problem.sentence()
    assert wiring_problems(resolved(topology="Split")) == []


@pytest.mark.parametrize(("per_pod", "kind"), [(0, "preferred"), (2, "required")])
def test_pods_of_a_group_are_kept_apart(per_pod: int, kind: str) -> None:
    worker = {"parallelism": {"tensor": 6, "nodes": 3}, "gpu": {"countPerNode": per_pod}}
    objects = render(resolved(topology="Split", worker=worker), TWO_GROUPS)
    for group in (obj for obj in objects if obj["kind"] == "StatefulSet"):
        affinity = group["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        ((name, (term,)),) = affinity.items()
        assert name == f"{kind}DuringSchedulingIgnoredDuringExecution"
        term = term.get("podAffinityTerm", term)
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"] == group["spec"]["selector"]


def test_ranks_give_up_before_the_kubelet_does_and_say_whom_they_missed() -> None:
    engine = {"startupDeadlineSeconds": 600}
    objects = list(render(group_of_three(engine=engine), TWO_GROUPS))
    args = _container(objects)["args"]
    assert args[args.index("--rendezvous-timeout") + 1] == "570"


def test_groups_of_a_former_shape_keep_policies_and_names_of_their_own() -> None:
    wide, lone = group_of_three(), resolved(topology="Split", replicas=2)
    for wanted, former in ((wide, lone), (lone, wide)):
        context = RenderContext(
            groups=(0,),
            former=(FormerGroup(resolved=former, index=1),),
            revisions=frozenset({former.revision}),
            cohorts=frozenset({former.cohort}),
        )
        objects = list(render(wanted, context))
        assert wiring_faults(objects, GPU) == []
        named = [obj for obj in objects if obj["metadata"]["name"] == f"demo-w-{wide.revision}"]
        assert [port["port"] for port in named[0]["spec"]["ports"]] == [30002, 30003]


def test_policies_that_are_switched_off_are_not_made_for_former_groups_either() -> None:
    former = FormerGroup(resolved=group_of_three(), index=1)
    objects = render(
        resolved(topology="Split", networkPolicy="Off"), RenderContext(groups=(), former=(former,))
    )
    assert not [obj for obj in objects if obj["kind"] == "NetworkPolicy"]


def test_a_policy_is_read_as_an_enforcer_reads_it() -> None:
    policies = [
        {
            "spec": {
                "podSelector": {"matchLabels": {"app": "a"}},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"app": "b"}}}],
                     "ports": [{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "UDP"}]},
                    {"from": [{"namespaceSelector": {"matchLabels": {}}}]},
                ],
            }
        }
    ]  # fmt: skip
    assert allows(policies, {"app": "b"}, {"app": "a"}, 1)
    assert not allows(policies, {"app": "b"}, {"app": "a"}, 2)
    assert not allows(policies, {"app": "c"}, {"app": "a"}, 1)
    assert allows(policies, {"app": "c"}, {"app": "b"}, 1)
    assert allows([], {}, {}, 1)
