"""What is printed for LeaderWorkerSet stands alone; selectors and policies in it mean its pods."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.devcluster.published import LEADER_WORKER_SETS
from tests.operator.documents import resolved
from tests.operator.lws_pods import LwsPod, pods_of
from tests.operator.spec.rule_examples import document

from mizzen_operator import cli
from mizzen_operator.planner.groups import budget_of
from mizzen_operator.render import labels
from mizzen_operator.render.leader_worker_set import (
    EXPERIMENTAL,
    SCHEMA_VERSION,
    objects_without_operator,
)
from mizzen_operator.render.reachability import allows
from mizzen_operator.render.render import rendered_worker_group
from mizzen_operator.spec.model import MAX_REPLICAS
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.rules import MAX_NAME_LENGTH

GOLDEN = Path(__file__).resolve().parents[1] / "golden_lws"
CASES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())
IMAGES = ("--worker-image", "mizzen-worker:test", "--frontend-image", "mizzen-frontend:test")
AS_LWS = ("--groups-as", "LeaderWorkerSet")
Objects = list[dict[str, Any]]


def objects_of(service: Resolved) -> Objects:
    """As `mizzen plan` has them."""
    budget = budget_of(service.spec.worker.rollout, service.groups)
    return list(
        objects_without_operator(service, surge=budget.surge, unavailable=budget.unavailable)
    )


def wide(**spec: Any) -> Resolved:
    """Groups of three pods."""
    worker = {"parallelism": {"tensor": 6, "nodes": 3}, **spec.pop("worker", {})}
    return resolved(**{"topology": "Split", "replicas": 2, **spec}, worker=worker)


def only(objects: Objects, kind: str) -> dict[str, Any]:
    (found,) = (obj for obj in objects if obj["kind"] == kind)
    return found


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = (obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) == (kind, name))
    return found


def selected(objects: Objects, selector: dict[str, str]) -> list[str]:
    pods = pods_of(only(objects, "LeaderWorkerSet"))
    return [pod.name for pod in pods if selector.items() <= pod.labels.items()]


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_as_expected(
    name: str, capsys: pytest.CaptureFixture[str], *, update_golden: bool
) -> None:
    expected = GOLDEN / name / "expected.yaml"
    assert cli.plan_verb(["-f", str(GOLDEN / name / "input.yaml"), *AS_LWS, *IMAGES]) == 0
    text = capsys.readouterr().out
    if update_golden:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_its_state_is_said_before_anything_else(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.plan_verb(["-f", str(GOLDEN / name / "input.yaml"), *AS_LWS])
    text = capsys.readouterr().out
    first, second = text.splitlines()[:2]
    said = (
        f"checked against the published schema of LeaderWorkerSet {SCHEMA_VERSION} only; "
        "the operator does not manage it"
    )
    assert first == f"# experimental: {said}"
    assert second.startswith("# not given by it: ")
    lws = only([obj for obj in yaml.safe_load_all(text) if obj], "LeaderWorkerSet")
    assert lws["metadata"]["annotations"] == {EXPERIMENTAL: said}


def test_the_version_that_is_named_is_the_one_that_is_tested() -> None:
    assert LEADER_WORKER_SETS.version == SCHEMA_VERSION


def test_another_kind_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(GOLDEN / CASES[0] / "input.yaml")
    assert cli.plan_verb(["-f", path, "--groups-as", "ReplicaSet"]) == 2
    assert capsys.readouterr() == (
        "",
        "mizzen plan: --groups-as: worker groups cannot be printed as 'ReplicaSet'; give "
        "StatefulSet or LeaderWorkerSet\n",
    )


def test_the_kind_of_the_operator_is_what_is_printed_anyway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(document({"spec": {"topology": "Split"}})), encoding="utf-8")
    printed = []
    for given in ((), ("--groups-as", "StatefulSet")):
        assert cli.plan_verb(["-f", str(path), *given]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_stopped_service_has_a_roll_out_that_a_set_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    stopped = document({"spec": {"topology": "Split", "replicas": 0}})
    path.write_text(yaml.safe_dump(stopped), encoding="utf-8")
    assert cli.plan_verb(["-f", str(path), "--groups-as", "LeaderWorkerSet"]) == 0
    printed = [obj for obj in yaml.safe_load_all(capsys.readouterr().out) if obj]
    spec = only(printed, "LeaderWorkerSet")["spec"]
    rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert spec["replicas"] == 0
    assert rolling["maxSurge"] or rolling["maxUnavailable"]


SERVICES = {
    "groups": wide,
    "without policies": lambda: wide(networkPolicy="Off"),
    "one pod": lambda: resolved(topology="Split", replicas=3),
    "unified": lambda: resolved(topology="Unified", replicas=2),
    "stopped": lambda: resolved(topology="Unified", stopped=True),
    "rotated keys": lambda: wide(security={"keyRotation": "2"}),
}


@pytest.mark.parametrize("what", SERVICES)
def test_the_set_stands_for_the_groups(what: str) -> None:
    service = SERVICES[what]()
    objects = objects_of(service)
    spec = only(objects, "LeaderWorkerSet")["spec"]
    template = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], template["size"]) == (service.groups, service.nodes)
    assert (template["restartPolicy"], spec["startupPolicy"]) == (
        "RecreateGroupOnPodRestart",
        "LeaderCreated",
    )
    assert spec["networkConfig"] == {"subdomainPolicy": "Shared"}
    assert "leaderTemplate" not in template
    assert not [obj for obj in objects if obj["kind"] in ("StatefulSet", "ControllerRevision")]


@pytest.mark.parametrize("what", SERVICES)
def test_pods_are_those_of_our_groups_but_for_who_they_are(what: str) -> None:
    service = SERVICES[what]()
    theirs = only(objects_of(service), "LeaderWorkerSet")
    theirs = theirs["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    ours = rendered_worker_group(service, 0)["spec"]["template"]["spec"]
    differing = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    assert differing == {"containers"} | ({"affinity"} if service.nodes > 1 else set())
    (our, their) = (spec["containers"][0] for spec in (ours, theirs))
    assert {name for name in {*our, *their} if our[name] != their[name]} == {"env"}
    assert [item["name"] for item in our["env"]] == [item["name"] for item in their["env"]]
    changed = [
        one["name"] for one, other in zip(our["env"], their["env"], strict=True) if one != other
    ]
    assert changed == ["MIZZEN_NODE_RANK", "MIZZEN_LEADER_ADDRESS", "MIZZEN_GROUP_ID"]


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


@pytest.mark.parametrize("what", SERVICES)
def test_nothing_says_that_the_operator_keeps_it(what: str) -> None:
    """A child with an owner that does not exist would be deleted at once."""
    objects = objects_of(SERVICES[what]())
    forbidden = {"ownerReferences", labels.APPLIED_HASH, labels.MANAGED_BY}
    # Labels of StatefulSets' pods that mean something else, or nothing, in pods of the set.
    assert not {*forbidden, labels.POD_INDEX, labels.GROUP_INDEX} & set(_keys(objects))
    assert "InferenceRoleScaler" not in {obj["kind"] for obj in objects}


def test_services_without_uid_do_not_share_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "services.yaml"
    bodies = [
        document({"metadata": {"name": name, "namespace": namespace}, "spec": {"replicas": 1}})
        for name, namespace in (("a", "one"), ("b", "one"), ("a", "two"))
    ]
    path.write_text(yaml.safe_dump_all(bodies), encoding="utf-8")
    assert cli.plan_verb(["-f", str(path), *AS_LWS]) == 0
    printed = [obj for obj in yaml.safe_load_all(capsys.readouterr().out) if obj]
    selectors = [obj["spec"]["selector"] for obj in printed if obj["kind"] == "Service"]
    assert len({selector[labels.SERVICE_UID] for selector in selectors}) == 3


def test_pods_mount_the_claim_that_the_job_fills() -> None:
    source = {"pvc": None, "huggingFace": {"repository": "org/model"}}
    objects = objects_of(resolved(model={"source": source, "cache": {"size": "1Gi"}}))
    template = only(objects, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    job = only(objects, "Job")["spec"]["template"]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in (template, job)
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {only(objects, "PersistentVolumeClaim")["metadata"]["name"]}


def test_services_lead_to_the_leader_of_every_group() -> None:
    objects = objects_of(wide())
    leaders = [pod.name for pod in pods_of(only(objects, "LeaderWorkerSet")) if pod.index == 0]
    assert leaders == ["demo-worker-0", "demo-worker-1"]
    found = [
        obj for obj in objects if obj["kind"] == "Service" and "leaders" in obj["metadata"]["name"]
    ]
    assert [selected(objects, obj["spec"]["selector"]) for obj in found] == [leaders]
    unified = objects_of(resolved(topology="Unified", replicas=2))
    service = named(unified, "Service", "demo")
    assert selected(unified, service["spec"]["selector"]) == leaders


def test_no_service_of_ours_has_the_name_of_the_one_that_the_set_gets() -> None:
    objects = objects_of(wide())
    names = [obj["metadata"]["name"] for obj in objects if obj["kind"] == "Service"]
    assert sorted(names) == ["demo", f"demo-leaders-{wide().cohort}"]


def test_ranks_reach_those_of_their_group_alone() -> None:
    objects = objects_of(wide())
    policies = [obj for obj in objects if obj["kind"] == "NetworkPolicy"]
    tokenizer = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    pods = list(pods_of(only(objects, "LeaderWorkerSet")))
    for one, other in permutations(pods, 2):
        for port in (30003, 40_000):
            assert allows(policies, one.labels, other.labels, port) == (one.group == other.group)
    for pod in pods:
        assert allows(policies, tokenizer, pod.labels, 30001) == (pod.index == 0)
        assert not allows(policies, tokenizer, pod.labels, 30003)
        assert not allows(policies, {}, pod.labels, 30003)


@pytest.mark.parametrize(
    ("rollout", "numbers"),
    [
        ({}, (0, 1)),
        ({"maxSurge": "40%", "maxUnavailable": 0}, (1, 0)),
        # Its webhook refuses two zeros.
        ({"maxSurge": 0, "maxUnavailable": "40%"}, (0, 1)),
        ({"maxSurge": 3, "maxUnavailable": "100%"}, (3, 2)),
    ],
)
def test_groups_that_exist_only_while_it_rolls_have_policies_too(
    rollout: dict[str, Any], numbers: tuple[int, int]
) -> None:
    service = wide(worker={"rollout": rollout})
    objects = objects_of(service)
    spec = only(objects, "LeaderWorkerSet")["spec"]
    surge, unavailable = numbers
    assert spec["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxSurge": surge, "maxUnavailable": unavailable},
    }
    own = [
        obj
        for obj in objects
        if obj["kind"] == "NetworkPolicy" and f"-w-{service.revision}" in obj["metadata"]["name"]
    ]
    assert len(own) == service.groups + surge


@pytest.mark.parametrize(("per_pod", "kind"), [(0, "preferred"), (2, "required")])
def test_pods_of_a_group_are_kept_apart(per_pod: int, kind: str) -> None:
    objects = objects_of(wide(worker={"gpu": {"countPerNode": per_pod}}))
    lws = only(objects, "LeaderWorkerSet")
    template = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    ((name, (term,)),) = template["spec"]["affinity"]["podAntiAffinity"].items()
    assert name == f"{kind}DuringSchedulingIgnoredDuringExecution"
    term = term.get("podAffinityTerm", term)
    pods = list(pods_of(lws))

    def kept_from(pod: LwsPod) -> list[LwsPod]:
        own = {key: pod.labels[key] for key in term["matchLabelKeys"]}
        wanted = {**term["labelSelector"]["matchLabels"], **own}
        return [other for other in pods if wanted.items() <= other.labels.items()]

    for pod in pods:
        assert {other.group for other in kept_from(pod)} == {pod.group}
        assert len(kept_from(pod)) == 3


def test_a_users_pod_template_is_merged_over_it() -> None:
    template = {
        "metadata": {"labels": {"team": "search"}},
        "spec": {
            "priorityClassName": "high",
            "containers": [
                {"name": "mizzen", "env": [{"name": "PRICE", "value": "$$5"}]},
                {"name": "side", "image": "i"},
            ],
        },
    }
    objects = objects_of(wide(worker={"podTemplate": template}))
    made = only(objects, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert made["metadata"]["labels"]["team"] == "search"
    assert made["spec"]["priorityClassName"] == "high"
    assert [item["name"] for item in made["spec"]["containers"]] == ["mizzen", "side"]
    pods = list(pods_of(only(objects, "LeaderWorkerSet")))
    assert {pod.variables["PRICE"] for pod in pods} == {"$5"}
    assert pods[1].variables["MIZZEN_LEADER_ADDRESS"] == "demo-worker-0.demo-worker.default"


def test_names_stay_within_what_kubernetes_takes() -> None:
    """Followers' StatefulSets are called as their leaders: 52 characters at most, for the label of
    their pods' revision adds eleven."""
    service = replace(resolved(topology="Split", replicas=MAX_REPLICAS), name="a" * MAX_NAME_LENGTH)
    pods = pods_of(only(objects_of(service), "LeaderWorkerSet"))
    assert max(len(pod.name) for pod in pods if pod.index == 0) <= 52
