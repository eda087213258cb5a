"""What must hold for every rendered object: names, labels, owners, pod security, selectors."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.render import labels
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.render.names import child_name, group_name
from mizzen_operator.render.render import RenderContext, keys_metadata, render
from mizzen_operator.spec.resolve import Resolved

LONGEST = "m" * 38
SERVICES = {
    "unified": resolved(),
    "split": resolved(topology="Split", replicas=2),
    "gpus": resolved(topology="Split", worker={"gpu": {"countPerNode": 4}}),
}
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Resolved:
    return SERVICES[request.param]


def _objects(service: Resolved) -> tuple[dict[str, Any], ...]:
    return render(service, RenderContext(groups=tuple(range(service.groups))))


def _pods(service: Resolved) -> Iterator[dict[str, Any]]:
    for obj in _objects(service):
        if obj["kind"] in ("StatefulSet", "Deployment"):
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


def test_names_of_the_longest_service_fit() -> None:
    base = resolved(topology="Split", replicas=1)
    longest = replace(base, name=LONGEST)
    for obj in render(longest, RenderContext(groups=(999,))):
        name = obj["metadata"]["name"]
        assert DNS_LABEL.fullmatch(name), name
        # Pods carry a controller-revision-hash label: name, dash and ten characters.
        assert obj["kind"] != "StatefulSet" or len(name) <= 52


def test_a_name_that_is_too_long_is_cut_and_stays_unique() -> None:
    first, second = child_name("a" * 70, "x"), child_name("a" * 71, "x")
    assert len(first) == len(second) == 63
    assert first != second
    assert child_name("short", "x") == "short-x"
    assert group_name(resolved(), 0) == f"demo-w-{resolved().revision}-0"


def test_selectors_use_only_our_own_labels_that_the_pods_have(service: Resolved) -> None:
    pods = [pod["metadata"]["labels"] | {labels.POD_INDEX: "0"} for pod in _pods(service)]
    for obj in _objects(service):
        selector = obj["spec"].get("selector", {}) if "spec" in obj else {}
        wanted = selector.get("matchLabels", selector)
        if not wanted:
            continue
        assert all(key.startswith(labels.PREFIX) or key == labels.POD_INDEX for key in wanted)
        assert any(wanted.items() <= pod.items() for pod in pods), obj["metadata"]["name"]


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
        assert mounts["models"]["readOnly"] is True
        assert volumes["models"]["persistentVolumeClaim"]["readOnly"] is True


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


def test_connections_of_the_policy_are_those_that_exist() -> None:
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
