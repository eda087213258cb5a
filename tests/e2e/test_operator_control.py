"""The operator against a real API server, without our images: rights, admission, convergence."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import SYSTEM
from tests.e2e.operator_process import (
    USER,
    USER_AGENT,
    OperatorProcess,
    account_kubeconfig,
    apply,
    children,
    condition,
    get,
    groups,
    install,
    num_unschedulable,
    operator_writes,
    reconcile_again,
    service,
    status_of,
)
from tests.e2e.waiting import wait_for
from tests.operator.spec.rule_examples import RULE_EXAMPLES, SCHEMA_EXAMPLES, document

from mizzen_operator.render import labels
from mizzen_operator.spec.rule import Rule
from mizzen_operator.spec.rules import RULES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DELETED_SECRET = ("delete", "secrets")
SERVICES = "/apis/serving.mizzen.dev/v1alpha1/namespaces/default/inferenceservices"


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that is not started yet and is gone after the test.

    Its LISTs come minutes apart, so what a test sees in time came by the watch.
    """
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path),
        log=tmp_path / "operator.log",
    )
    yield process
    process.end()


def dry_run(cluster: Cluster, patch: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = cluster.api.call("POST", f"{SERVICES}?dryRun=All", document(patch))
    return answer


# -- admission --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.cel], ids=lambda rule: rule.id)
def test_rows_4_26_and_33_the_api_server_enforces_each_rule(installed: Cluster, rule: Rule) -> None:
    for patch in RULE_EXAMPLES[rule.id].good:
        dry_run(installed, patch)
    for patch in RULE_EXAMPLES[rule.id].bad:
        with pytest.raises(ApiError) as caught:
            dry_run(installed, patch)
        assert caught.value.status == 422
        assert rule.message in json.loads(str(caught.value).partition(": ")[2])["message"]


@pytest.mark.parametrize("field", SCHEMA_EXAMPLES)
def test_row_38_the_api_server_enforces_each_bound(installed: Cluster, field: str) -> None:
    for patch in SCHEMA_EXAMPLES[field].good:
        dry_run(installed, patch)
    for patch in SCHEMA_EXAMPLES[field].bad:
        with pytest.raises(ApiError) as caught:
            dry_run(installed, patch)
        assert caught.value.status in (400, 422)
        assert field.rpartition(".")[2].partition("[")[0] in str(caught.value)


# -- rights -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("get", "secrets"), ("list", "secrets"), ("watch", "secrets"), ("update", "secrets"),
     ("deletecollection", "secrets"), ("update", "pods"), ("patch", "pods"),
     ("update", "inferenceservices"), ("get", "nodes"), ("list", "events")],
)  # fmt: skip
def test_rows_50_and_63_what_the_operator_may_not_do(
    installed: Cluster, verb: str, resource: str
) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "resourceAttributes": {"verb": verb, "resource": resource,
                 "namespace": "default"}},
    }  # fmt: skip
    answer = installed.api.call(
        "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review
    )
    assert answer["status"]["allowed"] is False


# -- convergence ------------------------------------------------------------------------------


def test_row_19_objects_appear_then_nothing_is_written_then_nothing_is_left(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    # LISTs in a quick succession make it reconcile although nothing happens.
    operator.settings = {"RESYNC_SECONDS": "2"}
    operator.start()
    operator.wait_until_synced()
    apply(installed, namespace, service())
    wait_for(
        "the status says what is missing",
        lambda: condition(installed, namespace, "chat", "Ready").get("reason") == "ClaimNotFound",
    )
    made = children(installed, namespace)
    assert {"Secret/chat-curve", "Deployment/chat-tokenizer", "Service/chat"} <= set(made)

    wait_for(
        "the scheduler has looked at every pod",
        lambda: num_unschedulable(installed, namespace) == 3,
    )
    wait_for_reconciles(operator, 2)
    before = len(operator_writes(installed, namespace))
    wait_for_reconciles(operator, 4)
    writes = operator_writes(installed, namespace)
    assert writes[before:] == []
    assert before > 5
    assert all(event.status < 400 for event in writes), writes
    assert all(event.user_agent.startswith(USER_AGENT) for event in writes)

    installed.kubectl("delete", "inferenceservice", "chat", "-n", namespace)
    wait_for("everything is gone", lambda: children(installed, namespace) == [])
    assert [
        event for event in operator_writes(installed, namespace) if event.verb == "delete"
    ] == []
    assert operator.stop() == 0


def wait_for_reconciles(operator: OperatorProcess, number: int) -> None:
    """Let that many more reconciles end, which a short resync brings."""
    name = "mizzen_operator_reconciles_total"
    enough = operator.metric(name) + number
    wait_for(f"{number} more reconciles", lambda: operator.metric(name) >= enough)


def test_row_54_an_edited_child_is_put_right_and_a_deleted_one_made_again(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    operator.wait_until_synced()
    apply(installed, namespace, service())
    wait_for("objects", lambda: "Deployment/chat-tokenizer" in children(installed, namespace))
    made = children(installed, namespace)
    installed.kubectl("scale", "deployment/chat-tokenizer", "--replicas=9", "-n", namespace)
    installed.kubectl("delete", "service/chat", "-n", namespace)

    def is_right() -> bool:
        found = get(installed, "deployment", "chat-tokenizer", "-n", namespace)
        return found["spec"]["replicas"] == 2 and children(installed, namespace) == made

    wait_for("both are put right", is_right)

    def told() -> list[str]:
        events = get(installed, "events", "-n", namespace)["items"]
        return [item["message"] for item in events if item["reason"] == "EditUndone"]

    wait_for("it is told", told)
    (message,) = told()
    # Its replicas are scaled by a subresource, in the name of kubectl.
    assert message.startswith("kubectl changed .spec.replicas of Deployment chat-tokenizer,")


def test_a_port_is_changed_by_the_spec_and_put_right_after_a_hand(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def ports() -> list[int]:
        found = get(installed, "service", "chat", "-n", namespace) or {"spec": {"ports": []}}
        return [item["port"] for item in found["spec"]["ports"]]

    operator.start()
    apply(installed, namespace, service())
    wait_for("the Service", lambda: ports() == [80])
    apply(installed, namespace, service(routing={"service": {"port": 8080}}))
    wait_for("the new port alone", lambda: ports() == [8080])
    # Another key of a list is another entry, and two of one name are refused.
    patch = json.dumps([{"op": "replace", "path": "/spec/ports/0/port", "value": 81}])
    installed.kubectl(
        "patch", "service", "chat", "-n", namespace, "--type=json", f"--patch={patch}"
    )
    wait_for("it is put right", lambda: ports() == [8080])


def test_row_11_what_a_hand_added_to_objects_and_status_goes(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def containers() -> list[str]:
        found = get(installed, "deployment", "chat-tokenizer", "-n", namespace)
        return [item["name"] for item in found["spec"]["template"]["spec"]["containers"]]

    def status() -> dict[str, Any]:
        return status_of(installed, namespace)

    operator.start()
    apply(installed, namespace, service())
    wait_for("objects", lambda: condition(installed, namespace, "chat", "Ready"))
    before = wait_for("a group in the status", lambda: status().get("groups") and status())
    (group,) = [item["name"] for item in before["groups"]]
    container = {"name": "more", "image": "none"}
    pod = {"spec": {"template": {"spec": {"containers": [container]}}}}
    installed.kubectl(
        *("patch", "deployment", "chat-tokenizer", "-n", namespace, f"--patch={json.dumps(pod)}")
    )
    wait_for("the container is gone", lambda: containers() == ["mizzen"])
    stamp = "2999-01-01T00:00:00Z"
    told = {"type": "Told", "status": "True", "reason": "ByHand", "lastTransitionTime": stamp}
    by_hand = {"status": {"conditions": [told], "groups": [{"name": "told"}], "replicas": 7}}
    installed.kubectl(
        *("patch", "misvc", "chat", "-n", namespace, "--subresource=status", "--type=merge"),
        f"--patch={json.dumps(by_hand)}",
    )
    names = {item["type"] for item in before["conditions"]}
    wait_for(
        "the status is the operator's again",
        lambda: (
            {item["type"] for item in status().get("conditions", ())} == names
            and [item["name"] for item in status().get("groups", ())] == [group]
            and status().get("replicas") == before["replicas"]
        ),
    )
    # Nor does taking them back keep the operator from emptying a list itself.
    apply(installed, namespace, service(replicas=0))
    wait_for("no groups", lambda: not status().get("groups"))
    apply(installed, namespace, service())
    wait_for("a group", lambda: status().get("groups"))
    apply(installed, namespace, service(tokenizer={"resources": {"limits": {"a b": 1}}}))
    wait_for(
        "a refusal is told",
        lambda: condition(installed, namespace, "chat", "Accepted").get("reason") == "InvalidSpec",
    )


def test_limits_go_when_the_spec_names_none_any_more(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def limits() -> dict[str, str] | None:
        found = get(installed, "deployment", "chat-tokenizer", "-n", namespace)
        if found is None:
            return None
        (container,) = found["spec"]["template"]["spec"]["containers"]
        answer: dict[str, str] = container["resources"].get("limits", {})
        return answer

    operator.start()
    apply(installed, namespace, service(tokenizer={"resources": {"limits": {"memory": "2Gi"}}}))
    wait_for("the limits", lambda: limits() == {"memory": "2Gi"})
    apply(installed, namespace, service())
    wait_for("no limits", lambda: limits() == {})


def test_a_group_with_a_variable_of_ours_can_be_applied_again(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    apply(installed, namespace, service(engine={"env": [{"name": "HOME", "value": "/tmp"}]}))
    (group,) = wait_for("the group", lambda: groups(installed, namespace))
    installed.kubectl("scale", group, "--replicas=3", "-n", namespace)
    wait_for(
        "it is put right",
        lambda: get(installed, group, "-n", namespace)["spec"]["replicas"] == 1,
    )


def test_with_a_watch_namespace_it_needs_no_rights_elsewhere(
    installed: Cluster, namespace: str, tmp_path: Path
) -> None:
    values = {"replicas": 0, "installCrds": False, "watchNamespace": namespace}
    install(installed, values, namespace=namespace)
    operator = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path, namespace=namespace),
        log=tmp_path / "operator.log",
        settings={"WATCH_NAMESPACE": namespace, "NAMESPACE": namespace},
    )
    elsewhere = f"{namespace}-other"
    installed.kubectl("create", "namespace", elsewhere)
    try:
        operator.start()
        operator.wait_until_synced()
        apply(installed, elsewhere, service())
        apply(installed, namespace, service())
        wait_for("objects", lambda: "Deployment/chat-tokenizer" in children(installed, namespace))
        installed.kubectl("scale", "deployment/chat-tokenizer", "--replicas=9", "-n", namespace)
        wait_for(
            "the watch works too",
            lambda: (
                get(installed, "deployment", "chat-tokenizer", "-n", namespace)["spec"]["replicas"]
                == 2
            ),
        )
        assert children(installed, elsewhere) == []
        assert operator.metric("mizzen_operator_services") == 1
        assert operator.metric("mizzen_operator_store_repairs_total") == 0
        assert operator.stop() == 0
    finally:
        operator.end()
        installed.kubectl("delete", "namespace", elsewhere, "--wait=false")


def test_a_foreign_object_is_left_alone_until_it_goes(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    installed.kubectl("create", "service", "clusterip", "chat", "--tcp=1", "-n", namespace)
    foreign = get(installed, "service", "chat", "-n", namespace)
    # Foreign objects are not watched: a LIST makes it look again.
    operator.settings = {"RESYNC_SECONDS": "2"}
    operator.start()
    apply(installed, namespace, service())
    accepted = wait_for(
        "the conflict is named",
        lambda: (
            condition(installed, namespace, "chat", "Accepted").get("reason") == "NameConflict"
            and condition(installed, namespace, "chat", "Accepted")
        ),
    )
    assert "Service chat exists in this namespace" in accepted["message"]
    assert get(installed, "service", "chat", "-n", namespace) == foreign
    events = get(installed, "events", "-n", namespace)["items"]
    told = [item for item in events if item["reason"] == "NameConflict"]
    assert [item["involvedObject"]["name"] for item in told] == ["chat"]
    installed.kubectl("delete", "service", "chat", "-n", namespace)
    wait_for(
        "the service goes on",
        lambda: condition(installed, namespace, "chat", "Accepted").get("status") == "True",
    )


def test_a_spec_change_makes_a_new_revision_and_removes_the_old(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    apply(installed, namespace, service())
    wait_for("the first group", lambda: groups(installed, namespace))
    first = groups(installed, namespace)
    apply(installed, namespace, service(engine={"contextLength": 512}))
    wait_for(
        "only a new group",
        lambda: groups(installed, namespace) and not set(groups(installed, namespace)) & set(first),
    )
    before = stored_revisions(installed, namespace)
    assert [item["revision"] for item in before] == [1, 2]
    # Going back changes the stored revision's number, and the API server guards its data.
    apply(installed, namespace, service())
    wait_for("the first group again", lambda: groups(installed, namespace) == first)
    after = stored_revisions(installed, namespace)
    assert [item["revision"] for item in after] == [2, 3]
    assert after[1]["metadata"]["uid"] == before[0]["metadata"]["uid"]
    assert after[1]["data"] == before[0]["data"]


def stored_revisions(cluster: Cluster, namespace: str) -> list[Any]:
    """Ours, not those that Kubernetes keeps of StatefulSets, in the order of their numbers."""
    ours = "serving.mizzen.dev/service=chat,!controller.kubernetes.io/hash"
    found = get(cluster, "controllerrevision", "-n", namespace, "-l", ours)["items"]
    return sorted(found, key=lambda item: int(item["revision"]))


def test_a_group_keeps_its_place_until_its_pods_have_ended(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    apply(installed, namespace, service())
    workers = ("get", "pods", "-o", "name", "-l", f"{labels.ROLE}={labels.ROLE_WORKER}")
    wait_for("a pod", lambda: installed.kubectl("-n", namespace, *workers).strip())
    first, pod = groups(installed, namespace), installed.kubectl("-n", namespace, *workers).strip()
    held = ("-n", namespace, "patch", pod, "--type=merge", "-p")
    installed.kubectl(*held, '{"metadata":{"finalizers":["example.com/drains"]}}')
    apply(installed, namespace, service(engine={"contextLength": 512}))
    path = "-o=jsonpath={.items[*].metadata.deletionTimestamp}"
    wait_for(
        "the group is leaving",
        lambda: installed.kubectl("-n", namespace, "get", "statefulset", path).strip(),
    )
    # Reconciles cannot be counted here: those that end first may not have seen the deletion yet.
    waits = f"waiting until {first[0].removeprefix('StatefulSet/')} has ended"
    wait_for(
        "the status says what it waits for",
        lambda: waits in condition(installed, namespace, "chat", "Progressing")["message"],
    )
    reconcile_again(operator, installed, namespace, times=3)
    assert groups(installed, namespace) == first
    installed.kubectl(*held, '{"metadata":{"finalizers":null}}')
    wait_for(
        "only a new group",
        lambda: groups(installed, namespace) and not set(groups(installed, namespace)) & set(first),
    )


def test_a_rotation_makes_other_keys_and_deletes_the_former(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def secrets() -> set[str]:
        return {name for name in children(installed, namespace) if name.startswith("Secret/")}

    def mounted() -> set[str]:
        found = get(installed, "statefulset,deployment", "-n", namespace)["items"]
        volumes = [v for item in found for v in item["spec"]["template"]["spec"]["volumes"]]
        return {f"Secret/{v['secret']['secretName']}" for v in volumes if "secret" in v}

    operator.start()
    apply(installed, namespace, service(replicas=2))
    wait_for("a group", lambda: groups(installed, namespace))
    wait_for("tokenizers", lambda: tokenizer_keys(installed, namespace) == {None})
    before = set(groups(installed, namespace))
    assert mounted() == secrets() == {"Secret/chat-curve"}
    rotated = service(replicas=2, security={"keyRotation": "2027-01-01"})
    apply(installed, namespace, rotated)
    wait_for("other groups", lambda: set(groups(installed, namespace)).isdisjoint(before))
    wait_for("both kinds", lambda: len(tokenizer_keys(installed, namespace)) == 2)
    # Nothing here ever becomes ready, so tokenizers with the former keys stay.
    reconcile_again(operator, installed, namespace, times=3)
    assert mounted() < secrets()
    assert len(secrets()) == 2

    rotated["spec"]["stopped"] = True
    apply(installed, namespace, rotated)
    wait_for("the former keys are gone", lambda: secrets() == mounted())
    assert len(secrets()) == 1

    def deleted() -> list[str]:
        writes = operator_writes(installed, namespace)
        return [write.name for write in writes if (write.verb, write.resource) == DELETED_SECRET]

    wait_for("the operator deleted them", lambda: deleted() == ["chat-curve"])


def tokenizer_keys(cluster: Cluster, namespace: str) -> set[str | None]:
    """Labels of keys that tokenizer pods have."""
    selector = f"{labels.ROLE}={labels.ROLE_TOKENIZER}"
    found = get(cluster, "pods", "-n", namespace, "-l", selector)["items"]
    return {pod["metadata"]["labels"].get(labels.KEYS) for pod in found}


CPU_RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]},
}
NO_ROOM = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "full"},
    "spec": {"hard": {"pods": "0"}},
}


def cpu_limit(amount: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": amount}}}


def test_pods_that_a_policy_refuses_are_told_before_anything_is_touched(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def accepted(reason: str) -> dict[str, Any]:
        found = condition(installed, namespace, "chat", "Accepted")
        return found if found.get("reason") == reason else {}

    def refusal(said: str) -> dict[str, Any]:
        found = accepted("InvalidPodTemplate")
        return found if said in found.get("message", "") else {}

    def placed() -> str:
        return str(condition(installed, namespace, "chat", "Placed").get("message", ""))

    def versions() -> set[tuple[str, str]]:
        """Of workloads and pods, by what a person changes in them."""
        found = get(installed, "statefulset,deployment,pod", "-n", namespace)["items"]
        return {(i["metadata"]["uid"], str(i["metadata"].get("generation"))) for i in found}

    operator.start()
    apply(installed, namespace, service())
    wait_for("it is accepted", lambda: accepted("Valid"))
    wait_for("its pods", lambda: len(versions()) >= 5)
    before = versions()
    apply(installed, namespace, CPU_RANGE)

    apply(installed, namespace, service(worker=cpu_limit("4")))
    told = wait_for("the LimitRange is told", lambda: refusal("maximum cpu usage per Container"))
    assert told["message"].startswith("spec.worker.resources (cpu): the API server refuses")
    assert versions() == before
    reconcile_again(operator, installed, namespace, times=3)
    assert versions() == before

    words = "must be an integer"
    fraction = {"resources": {"limits": {"example.com/card": "500m"}}}
    apply(installed, namespace, service(worker=fraction))
    told = wait_for("the StatefulSet's field is told", lambda: refusal(words))
    assert told["message"].startswith("spec.worker.resources.limits.example.com/card: ")
    assert versions() == before

    apply(installed, namespace, NO_ROOM)
    wait_for(
        "the quota is counted",
        lambda: (get(installed, "quota", "full", "-n", namespace).get("status") or {}).get("hard"),
    )
    old = groups(installed, namespace)
    apply(installed, namespace, service(worker=cpu_limit("2")))
    wait_for(
        "a full quota holds nothing up and is told, beside what the scheduler says of other pods",
        lambda: (
            accepted("Valid")
            and "exceeded quota: full" in placed()
            and not set(groups(installed, namespace)) & set(old)
        ),
    )
    installed.kubectl("delete", "quota", "full", "-n", namespace)
    wait_for(
        "nothing is told of it once there is room",
        lambda: "exceeded quota" not in placed(),
    )
    assert not [name for name in pod_names(installed, namespace) if name.endswith("-dry-run")]


def pod_names(cluster: Cluster, namespace: str) -> list[str]:
    found = get(cluster, "pods", "-n", namespace)["items"]
    return [item["metadata"]["name"] for item in found]


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2])
def test_killed_it_goes_on_after_a_restart(
    installed: Cluster, namespace: str, operator: OperatorProcess, delay_s: float
) -> None:
    operator.start()
    operator.wait_until_synced()
    apply(installed, namespace, service(replicas=3))
    wait_for("a first object", lambda: children(installed, namespace))
    time.sleep(delay_s)
    operator.kill()
    apply(installed, namespace, service(replicas=2))
    operator.start()
    operator.wait_until_synced()
    wait_for(
        "the status speaks of the last spec",
        lambda: condition(installed, namespace, "chat", "Ready").get("observedGeneration") == 2,
    )
    assert len(groups(installed, namespace)) == 2
    assert "Secret/chat-curve" in children(installed, namespace)


def test_row_40_a_standby_takes_over_at_once_when_the_leader_ends_gracefully(
    installed: Cluster, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    standby = OperatorProcess(
        kubeconfig=operator.kubeconfig, log=tmp_path / "standby.log", identity="standby"
    )
    operator.start()
    operator.wait_until_synced()
    standby.start()
    try:
        wait_for("the standby is well", lambda: standby.ask("/readyz")[0] == 200)
        assert standby.metric("mizzen_operator_is_leader") == 0
        assert operator.stop() == 0
        # Well before the Lease runs out, which was renewed a few seconds ago at the most.
        wait_for("it leads", lambda: standby.metric("mizzen_operator_is_leader") == 1, timeout_s=30)
        lease = get(installed, "lease", "mizzen-operator", "-n", SYSTEM)
        assert lease["spec"]["holderIdentity"] == "standby"
        assert standby.stop() == 0
    finally:
        standby.end()


def test_row_40_ended_before_its_reconciles_are_it_hands_nothing_over(
    installed: Cluster, operator: OperatorProcess
) -> None:
    """A write may still be under way then; the time-out of 0 leaves reconciles no time to end."""
    operator.settings = {**operator.settings, "STOP_SECONDS": "0"}
    operator.start()
    operator.wait_until_synced()
    assert operator.stop() == 0
    lease = get(installed, "lease", "mizzen-operator", "-n", SYSTEM)
    assert lease["spec"]["holderIdentity"] == operator.identity


def test_started_before_the_definition_it_waits_and_says_so(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    installed.kubectl("delete", "crd", "inferenceservices.serving.mizzen.dev")
    operator.start()
    try:
        wait_for(
            "the log says what is missing",
            lambda: "cannot list InferenceServices yet" in operator.log.read_text(),
        )
        status, text = operator.ask("/readyz")
        assert (status, text) == (503, "the first LISTs are not complete\n")
        assert operator.ask("/healthz")[0] == 200
    finally:
        install(installed, {"replicas": 0})
    operator.wait_until_synced()
    apply(installed, namespace, service())
    wait_for("objects", lambda: "Service/chat" in children(installed, namespace))


def test_it_ends_when_the_definition_goes_and_works_on_after_a_restart(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    operator.wait_until_synced()
    try:
        installed.kubectl("delete", "crd", "inferenceservices.serving.mizzen.dev")
        assert operator.wait() == 1
    finally:
        install(installed, {"replicas": 0})
    operator.start()
    operator.wait_until_synced()
    apply(installed, namespace, service())
    wait_for("objects", lambda: "Service/chat" in children(installed, namespace))


def test_row_40_a_stolen_lease_ends_the_process_at_once(
    installed: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    operator.wait_until_synced()
    patch = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 1}}
    installed.kubectl(
        *("patch", "lease", "mizzen-operator", "-n", SYSTEM),
        *("--type=merge", "-p", json.dumps(patch)),
    )
    assert operator.wait() == 1
    assert "taken by somebody else" in operator.log.read_text()
