"""What must hold for every rendered object: names, labels, owners, pod security, selectors."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.spec.rule_examples import SOURCES

from mizzen_operator.render import labels
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.render.names import child_name, group_name, weights_name
from mizzen_operator.render.render import RenderContext, keys_metadata, render
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import (
    DRAIN_ARG_DEADLINE,
    ENV_ROLE,
    VERB_TOKENIZER,
    VERB_UNIFIED,
    VERB_WORKER,
)

LONGEST = "m" * 38
SERVICES = {
    "unified": resolved(),
    "split": resolved(topology="Split", replicas=2),
    "gpus": resolved(topology="Split", worker={"gpu": {"countPerNode": 4}}),
    "nodes": resolved(topology="Split", worker={"parallelism": {"tensor": 4, "nodes": 2}}),
    **{
        source: resolved(
            topology="Split",
            model={"source": {"pvc": None, source: fields}, "cache": {"size": "1Gi"}},
        )
        for source, fields in SOURCES.items()
    },
}
SERVING = ("StatefulSet", "Deployment")
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Resolved:
    return SERVICES[request.param]


def _objects(service: Resolved) -> tuple[dict[str, Any], ...]:
    return render(service, RenderContext(groups=tuple(range(service.groups))))


def _pods(
    service: Resolved, kinds: tuple[str, ...] = (*SERVING, "Job")
) -> Iterator[dict[str, Any]]:
    for obj in _objects(service):
        if obj["kind"] in kinds:
            yield obj["spec"]["template"]


def test_every_object_belongs_to_the_service(service: Resolved) -> None:
    for obj in _objects(service):
        meta = obj["metadata"]
        assert meta["namespace"] == service.namespace
        assert meta["labels"][labels.SERVICE_UID] == service.uid
        assert meta["labels"][labels.MANAGED_BY] == labels.MANAGER
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (service.uid, True)
        assert meta["annotations"][labels.APPLIED_HASH]


def test_kinds_are_those_that_are_pruned_and_come_in_their_order(service: Resolved) -> None:
    order = [child.kind for child in CHILD_KINDS]
    kinds = [obj["kind"] for obj in _objects(service)]
    assert kinds == sorted(kinds, key=order.index)


def test_names_are_unique_per_kind(service: Resolved) -> None:
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in _objects(service)]
    assert len(set(names)) == len(names)


def test_row_66_names_of_the_longest_service_fit() -> None:
    base = resolved(topology="Split", replicas=1)
    longest = replace(base, name=LONGEST)
    for obj in render(longest, RenderContext(groups=(999,))):
        name = obj["metadata"]["name"]
        assert DNS_LABEL.fullmatch(name), name
        # Pods carry a controller-revision-hash label: name, dash and ten characters.
        assert obj["kind"] != "StatefulSet" or len(name) <= 52


def test_row_66_a_name_that_is_too_long_is_cut_and_stays_unique() -> None:
    first, second = child_name("a" * 70, "x"), child_name("a" * 71, "x")
    assert len(first) == len(second) == 63
    assert first != second
    assert child_name("short", "x") == "short-x"
    assert group_name(resolved(), 0) == f"demo-w-{resolved().revision}-0"


def test_row_18_selectors_use_only_our_own_labels_that_the_pods_have(service: Resolved) -> None:
    pods = [pod["metadata"]["labels"] | {labels.POD_INDEX: "0"} for pod in _pods(service)]
    for obj in _objects(service):
        selector = obj["spec"].get("selector", {}) if "spec" in obj else {}
        wanted = selector.get("matchLabels", selector)
        if not wanted:
            continue
        assert all(key.startswith(labels.PREFIX) or key == labels.POD_INDEX for key in wanted)
        assert any(wanted.items() <= pod.items() for pod in pods), obj["metadata"]["name"]


ROLES_BY_VERB = {
    VERB_WORKER: (labels.ROLE_WORKER, "worker"),
    VERB_UNIFIED: (labels.ROLE_WORKER, "unified"),
    VERB_TOKENIZER: (labels.ROLE_TOKENIZER, "tokenizer"),
}
"""What a pod is labelled as, and what it is told that it is."""


def test_row_18_verb_role_and_probes_of_a_pod_agree(service: Resolved) -> None:
    for pod in _pods(service, SERVING):
        (container,) = pod["spec"]["containers"]
        environ = {item["name"]: item.get("value") for item in container["env"]}
        label = pod["metadata"]["labels"][labels.ROLE]
        assert (label, environ[ENV_ROLE]) == ROLES_BY_VERB[container["command"][1]]
        ports = {item["name"] for item in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports


def test_row_18_services_and_policies_lead_to_ports_that_are_open(service: Resolved) -> None:
    ports_by_role = {}
    for pod in _pods(service):
        (container,) = pod["spec"]["containers"]
        ports = {item["name"]: item["containerPort"] for item in container.get("ports", ())}
        ports_by_role[pod["metadata"]["labels"][labels.ROLE]] = ports
    for obj in _objects(service):
        if obj["kind"] == "Service":
            ports = ports_by_role[obj["spec"]["selector"][labels.ROLE]]
            assert {item["targetPort"] for item in obj["spec"]["ports"]} <= ports.keys()
        elif obj["kind"] == "NetworkPolicy":
            ports = ports_by_role[obj["spec"]["podSelector"]["matchLabels"][labels.ROLE]]
            # Ranks of one group reach each other on any port: their libraries choose some.
            open_to = [item for rule in obj["spec"]["ingress"] for item in rule.get("ports", ())]
            assert {item["port"] for item in open_to} <= {*ports.values()}


def test_every_pod_meets_the_restricted_standard(service: Resolved) -> None:
    for pod in _pods(service):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        allowed = {"persistentVolumeClaim", "emptyDir", "secret"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_every_mount_has_its_volume_and_weights_are_read_only(service: Resolved) -> None:
    for pod in _pods(service):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert set(mounts) == set(volumes)
        is_fetching = pod["metadata"]["labels"][labels.ROLE] == labels.ROLE_WEIGHTS
        assert mounts["models"].get("readOnly", False) is not is_fetching
        claim = volumes["models"]["persistentVolumeClaim"]
        assert claim.get("readOnly", False) is not is_fetching


@pytest.mark.parametrize("name", ["HOME", "TRITON_CACHE_DIR"])
def test_a_variable_of_the_user_takes_the_place_of_ours(name: str) -> None:
    engine = {"env": [{"name": name, "value": "/elsewhere"}]}
    (pod,) = _pods(resolved(engine=engine))
    (container,) = pod["spec"]["containers"]
    found = [item["value"] for item in container["env"] if item["name"] == name]
    assert found == ["/elsewhere"]


def test_no_text_of_the_user_is_expanded_by_the_kubelet() -> None:
    source = {"pvc": {"claimName": "weights", "path": "$(A).gguf"}}
    engine = {"args": ["$(A)", "$$(A)"], "env": [{"name": "A", "value": "--model=$$(B)"}]}
    (pod,) = _pods(resolved(model={"source": source}, engine=engine))
    (container,) = pod["spec"]["containers"]
    # The kubelet reads $$ as $ and expands $(A) only after a single one.
    assert container["args"][1] == "/models/$$(A).gguf"
    assert container["args"][-2:] == ["$$(A)", "$$$$(A)"]
    assert {"name": "A", "value": "--model=$$$$(B)"} in container["env"]


@pytest.mark.parametrize("topology", ["Split", "Unified"])
def test_data_parallel_ranks_share_a_pod_and_have_a_gpu_each(topology: str) -> None:
    worker = {"parallelism": {"data": 2}, "gpu": {"countPerNode": 2}}
    containers = [
        pod["spec"]["containers"][0] for pod in _pods(resolved(topology=topology, worker=worker))
    ]
    (container,) = (item for item in containers if "limits" in item["resources"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    at = container["args"].index("--data-parallel-size")
    assert container["args"][at + 1] == "2"


def test_a_role_gets_only_the_keys_it_needs() -> None:
    worker, tokenizer = (
        {item["key"] for volume in pod["spec"]["volumes"] for item in _key_items(volume)}
        for pod in _pods(resolved(topology="Split"))
    )
    assert worker == {"server.key", "server.pub", "client.pub"}
    assert tokenizer == {"client.key", "client.pub", "server.pub"}
    assert keys_metadata(resolved()) is None


def _key_items(volume: dict[str, Any]) -> list[dict[str, str]]:
    items: list[dict[str, str]] = volume.get("secret", {}).get("items", [])
    return items


def test_a_change_of_content_changes_the_applied_hash() -> None:
    hashes = {
        obj["metadata"]["annotations"][labels.APPLIED_HASH]
        for port in (80, 81)
        for obj in _objects(resolved(routing={"service": {"port": port}}))
        if (obj["kind"], obj["metadata"]["name"]) == ("Service", "demo")
    }
    assert len(hashes) == 2


def test_row_65_connections_of_the_policy_are_those_that_exist() -> None:
    policies = {
        obj["metadata"]["name"]: obj["spec"]
        for obj in _objects(resolved(topology="Split"))
        if obj["kind"] == "NetworkPolicy"
    }
    into_worker = policies["demo-worker"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in into_worker] == [30001]
    assert into_worker[0]["from"][0]["podSelector"]["matchLabels"][labels.ROLE] == "tokenizer"
    ports = [port["port"] for rule in policies["demo-worker"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53]
    assert not [
        obj
        for obj in _objects(resolved(topology="Split", networkPolicy="Off"))
        if obj["kind"] == "NetworkPolicy"
    ]


@pytest.mark.parametrize("drain_s", [0, 1, 299, 3600])
@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_rows_37_and_38_a_pod_has_more_time_to_end_than_to_drain(
    topology: str, drain_s: int
) -> None:
    service = resolved(topology=topology, worker={"drain": {"timeoutSeconds": drain_s}})
    pods = list(_pods(service, SERVING))
    assert pods
    for template in pods:
        spec = template["spec"]
        (container,) = spec["containers"]
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert spec["terminationGracePeriodSeconds"] >= drain_s + 30
        assert command[command.index(DRAIN_ARG_DEADLINE) + 1] == str(drain_s)


def _limits(**spec: Any) -> dict[str, dict[str, int]]:
    """Of each budget by its role."""
    service = resolved(topology="Split", **spec)
    budgets = [obj for obj in _objects(service) if obj["kind"] == "PodDisruptionBudget"]
    return {
        obj["metadata"]["labels"][labels.ROLE]: {
            key: value for key, value in obj["spec"].items() if isinstance(value, int)
        }
        for obj in budgets
    }


def test_row_39_one_pod_of_a_role_may_go_at_a_time_and_a_single_one_at_any() -> None:
    tokenizers = {labels.ROLE_TOKENIZER: {"maxUnavailable": 1}}
    nodes = {"worker": {"parallelism": {"tensor": 2, "nodes": 2}}}
    assert _limits(replicas=1) == tokenizers
    assert _limits(replicas=3) == {labels.ROLE_WORKER: {"minAvailable": 2}, **tokenizers}
    assert _limits(replicas=3, **nodes)[labels.ROLE_WORKER] == {"minAvailable": 5}
    assert _limits(replicas=3, stopped=True) == {}


def test_row_65_only_a_job_reaches_beyond_dns_and_the_service_and_nobody_reaches_it() -> None:
    for source in SOURCES:
        for obj in _objects(SERVICES[source]):
            if obj["kind"] != "NetworkPolicy":
                continue
            anywhere = [rule for rule in obj["spec"]["egress"] if "to" not in rule]
            ports = {item["port"] for rule in anywhere for item in rule["ports"]}
            if obj["spec"]["podSelector"]["matchLabels"][labels.ROLE] == labels.ROLE_WEIGHTS:
                assert ports == {53, 443}
                assert obj["spec"]["ingress"] == []
            else:
                assert ports == {53}


def test_a_job_fetches_to_where_the_pods_that_serve_look() -> None:
    folders = {"huggingFace": "model", "s3": "model", "oci": "model"}
    for source, folder in folders.items():
        (job,) = _pods(SERVICES[source], ("Job",))
        (container,) = job["spec"]["containers"]
        assert container["command"] == ["mizzen", "fetch-weights"]
        assert container["args"][:2] == ["--to", "/models"]
        for pod in _pods(SERVICES[source], SERVING):
            args = pod["spec"]["containers"][0]["args"]
            assert args[args.index("--model") + 1] == f"/models/{folder}"
            (claim,) = (item for item in pod["spec"]["volumes"] if item["name"] == "models")
            assert claim["persistentVolumeClaim"]["claimName"] == weights_name(SERVICES[source])


def test_credentials_of_a_source_are_references_that_the_kubelet_resolves() -> None:
    secret = {"huggingFace": {"tokenSecretRef": {"name": "hub", "key": "token"}}}
    source = {"pvc": None, "huggingFace": {**SOURCES["huggingFace"], **secret["huggingFace"]}}
    service = resolved(model={"source": source, "cache": {"size": "1Gi"}})
    (job,) = _pods(service, ("Job",))
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in job["spec"]["containers"][0]["env"]
    without = resolved(
        model={"source": {"pvc": None, "huggingFace": SOURCES["huggingFace"]},
               "cache": {"size": "1Gi"}}
    )  # fmt: skip
    assert without.revision == service.revision
    assert weights_name(without) == weights_name(service)
