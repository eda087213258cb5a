"""Complaints about operators like this one, tried on a real API server.

The number in a test's name is the complaint's in `docs/complaints.md`, which names the tests of
other files too. Pods have no kubelet here: what they report is what the test says.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster, KubectlError
from tests.e2e.described import NO_NODE, service, wait_until_told, weights
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    children,
    condition,
    get,
    groups,
    operator_writes,
    role_of,
)
from tests.e2e.waiting import wait_for
from tests.e2e.without_kubelets import as_ready, cards, node, workers

from mizzen_operator.render import labels
from mizzen_operator.spec.rules import MAX_NAME_LENGTH
from mizzen_operator.store import OPTIONAL_KINDS, OWNED_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def process(
    installed: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    found = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, folder), log=folder / "operator.log"
    )
    yield found
    found.end()


@pytest.fixture
def operator(process: OperatorProcess) -> OperatorProcess:
    """A running operator; a test may stop it and start it with other settings."""
    if not process.is_running:
        process.settings = {}
        process.start()
    process.wait_until_synced()
    return process


def listed(cluster: Cluster, namespace: str, kinds: str) -> list[dict[str, Any]]:
    found = get(cluster, kinds, "-n", namespace) or {"items": []}
    items: list[dict[str, Any]] = found["items"]
    return items


# -- pods without kubelets --------------------------------------------------------------------


def is_leaving(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)


def carry_on(cluster: Cluster, namespace: str, *, only_on_nodes: bool = False) -> None:
    """What kubelets would do next: ending pods end, the others become ready."""
    for pod in listed(cluster, namespace, "pods"):
        try:
            if is_leaving(pod):
                metadata = pod["metadata"]
                path = f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}"
                now = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                cluster.api.call("DELETE", path, now)
            elif not is_ready(pod) and (not only_on_nodes or "nodeName" in pod["spec"]):
                as_ready(cluster, pod)
        except ApiError as error:
            # The operator goes on meanwhile, and a pod on no node is gone as soon as it is deleted.
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise


def is_complete(cluster: Cluster, namespace: str, generation: int) -> bool:
    """Whether the last spec is what serves, and nothing moves any more."""
    ready = condition(cluster, namespace, "chat", "Ready")
    return (ready.get("status"), ready.get("observedGeneration")) == ("True", generation)


def generation_of(cluster: Cluster, namespace: str) -> int:
    return int(get(cluster, "misvc", "chat", "-n", namespace)["metadata"]["generation"])


def roll(
    cluster: Cluster,
    namespace: str,
    spec: dict[str, Any],
    look: Callable[[list[dict[str, Any]]], None],
    *,
    until_begun: bool = False,
    only_on_nodes: bool = False,
) -> None:
    """Apply a spec and carry on until it serves, or until its first pod is there."""
    before = {pod["metadata"]["uid"] for pod in workers(cluster, namespace)}
    apply(cluster, namespace, spec)
    generation = generation_of(cluster, namespace)

    def is_there() -> bool:
        pods = workers(cluster, namespace)
        look(pods)
        if until_begun and {pod["metadata"]["uid"] for pod in pods} - before:
            return True
        carry_on(cluster, namespace, only_on_nodes=only_on_nodes)
        return is_complete(cluster, namespace, generation)

    wait_for("the roll-out", is_there)


def revised(replicas: int, context: int, **worker: Any) -> dict[str, Any]:
    """A service whose revision is chosen by `context`."""
    return service(replicas=replicas, worker=worker, engine={"contextLength": context})


# -- upgrades ---------------------------------------------------------------------------------


def test_rows_1_and_2_another_release_of_the_operator_moves_no_pod_unless_told_to(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def images() -> set[str]:
        found = listed(cluster, namespace, "statefulset,deployment")
        return {
            container["image"]
            for item in found
            for container in item["spec"]["template"]["spec"]["containers"]
        }

    def identities() -> set[tuple[str, str]]:
        found = listed(cluster, namespace, "pods,statefulset,deployment")
        return {(i["metadata"]["uid"], str(i["metadata"].get("generation"))) for i in found}

    def update() -> dict[str, Any]:
        return condition(cluster, namespace, "chat", "UpdateAvailable")

    split = {"topology": "Split", "worker": NO_NODE}
    apply(cluster, namespace, service(**split))
    wait_for("its pods", lambda: len(listed(cluster, namespace, "pods")) == 3)
    # The last thing that a new service is told: then all is still.
    wait_until_told(cluster, namespace, "Reason: Unschedulable")
    before = identities()
    assert images() == {"mizzen-frontend:none", "mizzen-worker:none"}
    operator.stop()
    operator.settings = {"FRONTEND_IMAGE": "mizzen-frontend:next", "WORKER_IMAGE": "w:next"}
    operator.start()
    try:
        operator.wait_until_synced()
        # Scaled, so that it is surely looked at and gets another group.
        apply(cluster, namespace, service(**split, replicas=2))
        wait_for("another group", lambda: len(workers(cluster, namespace)) == 2)
        assert before <= identities()
        assert images() == {"mizzen-frontend:none", "mizzen-worker:none"}
        wait_for("what could be followed is told", lambda: update().get("status") == "True")
        assert "mizzen-frontend:next in place of mizzen-frontend:none" in update()["message"]
        apply(cluster, namespace, service(**split, replicas=2, updatePolicy="Follow"))
        wait_for("the tokenizers follow", lambda: "mizzen-frontend:next" in images())
        wait_for("nothing is left to tell", lambda: not update())
    finally:
        operator.stop()


def test_rows_3_and_4_a_full_pool_rolls_and_half_way_back(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    """Two nodes with one card each, and two groups: a third pod could go nowhere.

    A pod that takes the place of another may be told for a moment that there is none: the scheduler
    notes what left a node and what wants one on two queues of its own, in no order.
    """

    def look(pods: list[dict[str, Any]]) -> None:
        assert len(groups(cluster, namespace)) <= 2
        assert len({pod["metadata"]["uid"] for pod in pods}) <= 2

    nodes = [f"{namespace[-20:].strip('-')}-{number}" for number in range(2)]
    spec = cards(rollout={"maxSurge": 0, "maxUnavailable": 1})
    with ExitStack() as stack:
        stack.enter_context(weights(cluster, namespace))
        for name in nodes:
            stack.enter_context(node(cluster, name))
        roll(cluster, namespace, revised(2, 256, **spec), look, only_on_nodes=True)
        first = set(groups(cluster, namespace))
        assert {pod["spec"]["nodeName"] for pod in workers(cluster, namespace)} == set(nodes)
        changed = revised(2, 512, **spec)
        roll(cluster, namespace, changed, look, until_begun=True, only_on_nodes=True)
        roll(cluster, namespace, revised(2, 256, **spec), look, only_on_nodes=True)
        assert set(groups(cluster, namespace)) == first
        roll(cluster, namespace, changed, look, only_on_nodes=True)
        assert not first & set(groups(cluster, namespace))
        cluster.kubectl("delete", "misvc", "chat", "-n", namespace)

        def is_empty() -> bool:
            carry_on(cluster, namespace)
            return not workers(cluster, namespace)

        wait_for("the nodes are empty", is_empty)


# -- deletion ---------------------------------------------------------------------------------


def test_row_19_a_deletion_needs_no_operator(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service(topology="Split", worker=NO_NODE))
    wait_for("objects", lambda: "Service/chat" in children(cluster, namespace))
    wait_for("a pod", lambda: workers(cluster, namespace))
    operator.stop()
    assert "finalizers" not in get(cluster, "misvc", "chat", "-n", namespace)["metadata"]
    cluster.kubectl("delete", "misvc", "chat", "-n", namespace)
    wait_for("nothing is left", lambda: not children(cluster, namespace))
    wait_for("no pod is left", lambda: not workers(cluster, namespace))


KOPF_OPERATOR = """
import kopf

@kopf.on.create("serving.mizzen.dev", "v1alpha1", "inferenceservices")
@kopf.on.update("serving.mizzen.dev", "v1alpha1", "inferenceservices")
def seen(patch, **_):
    patch.metadata.annotations["example.com/seen"] = "yes"
"""


def test_row_21_nothing_bears_a_mark_of_the_framework_and_another_user_of_it_is_no_rival(
    cluster: Cluster, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    def marks() -> set[str]:
        """Keys and finalizers of kopf on the service and on all that it owns."""
        kinds = [kind.plural for kind in OWNED_KINDS if kind not in OPTIONAL_KINDS]
        found = listed(cluster, namespace, ",".join(["misvc", "pods", "secrets", *kinds]))
        metas = [item["metadata"] for item in found]
        keys = {
            key for meta in metas for key in (*meta.get("annotations", {}), *meta.get("labels", {}))
        }
        ends = {end for meta in metas for end in meta.get("finalizers", ())}
        return {word for word in keys | ends if "kopf" in word}

    labelled = service(topology="Split", worker=NO_NODE)
    labelled["metadata"]["labels"] = {"example.com/team": "search"}
    apply(cluster, namespace, labelled)
    wait_until_told(cluster, namespace, "Reason: Unschedulable")
    cluster.kubectl("label", "secrets,pods", "--all", "example.com/looked-at=yes", "-n", namespace)
    assert marks() == set()

    program = tmp_path / "rival.py"
    program.write_text(KOPF_OPERATOR)
    with (tmp_path / "rival.log").open("wb") as log:
        rival = subprocess.Popen(
            [sys.executable, "-m", "kopf", "run", str(program), "--namespace", namespace],
            env={"KUBECONFIG": str(cluster.kubeconfig), "PATH": "", "HOME": str(tmp_path)},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:

        def annotations() -> dict[str, str]:
            found = get(cluster, "misvc", "chat", "-n", namespace)["metadata"]
            answer: dict[str, str] = found.get("annotations", {})
            return answer

        wait_for("the rival marks it", lambda: annotations().get("example.com/seen"))
        before = annotations()
        labelled["spec"]["replicas"] = 2
        apply(cluster, namespace, labelled)
        wait_for("ours goes on", lambda: len(groups(cluster, namespace)) == 2)
        assert before.keys() <= annotations().keys()
        writes = operator_writes(cluster, namespace)
        ours = {e.resource for e in writes if e.resource.startswith("inferenceservices")}
        assert ours == {"inferenceservices/status"}
        cluster.kubectl("delete", "misvc", "chat", "-n", namespace)
        wait_for("nothing is left", lambda: not children(cluster, namespace))
    finally:
        rival.terminate()
        rival.wait()


# -- roll-outs --------------------------------------------------------------------------------


def test_row_25_optional_children_go_and_come_back(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def optional() -> set[str]:
        found = children(cluster, namespace)
        return {name for name in found if name.startswith(("NetworkPolicy/", "PodDisruption"))}

    plain = {"topology": "Split", "worker": NO_NODE}
    policies = {"NetworkPolicy/chat-worker", "NetworkPolicy/chat-tokenizer"}
    tokenizers = "PodDisruptionBudget/chat-tokenizer"
    whole = {*policies, tokenizers, "PodDisruptionBudget/chat-worker"}
    apply(cluster, namespace, service(**plain, replicas=2))
    wait_for("all of them", lambda: optional() == whole)
    apply(cluster, namespace, service(**plain, replicas=1, networkPolicy="Off"))
    wait_for("some are off", lambda: optional() == {tokenizers})
    apply(cluster, namespace, service(**plain, replicas=2))
    wait_for("they are back", lambda: optional() == whole)
    apply(cluster, namespace, service(worker=NO_NODE, replicas=2))
    wait_for(
        "none of tokenizers", lambda: "chat-tokenizer" not in str(children(cluster, namespace))
    )


def test_rows_30_and_31_quick_changes_of_the_spec_keep_groups_serving(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    serving: list[int] = []

    def look(pods: list[dict[str, Any]]) -> None:
        assert len(groups(cluster, namespace)) <= 3
        serving.append(sum(is_ready(pod) and not is_leaving(pod) for pod in pods))

    one_by_one = {**NO_NODE, "rollout": {"maxSurge": 0, "maxUnavailable": 1}}
    with weights(cluster, namespace):
        roll(cluster, namespace, revised(3, 256, **one_by_one), look)
        serving.clear()
        for context in (512, 256, 768, 512, 256):
            spec = revised(3, context, **one_by_one)
            roll(cluster, namespace, spec, look, until_begun=True)
        # The last one is the first one: what still lives of it is kept.
        roll(cluster, namespace, revised(3, 768, **one_by_one), look)
    assert min(serving) >= 2


@pytest.mark.parametrize(("surge", "unavailable"), [(0, 1), (1, 0)])
def test_row_34_settings_of_a_rollout_count_groups_of_several_pods(
    cluster: Cluster, namespace: str, operator: OperatorProcess, surge: int, unavailable: int
) -> None:
    """Two groups of two pods: what may be missing, or too many, is a whole group."""
    serving: list[int] = []

    def look(pods: list[dict[str, Any]]) -> None:
        assert len(groups(cluster, namespace)) <= 2 + surge
        ready = [pod for pod in pods if is_ready(pod) and not is_leaving(pod)]
        members = Counter(pod["metadata"]["name"].rpartition("-")[0] for pod in ready)
        serving.append(sum(number == 2 for number in members.values()))

    worker = cards(
        parallelism={"tensor": 2, "nodes": 2},
        rollout={"maxSurge": surge, "maxUnavailable": unavailable},
    )
    spec = {"topology": "Split", "replicas": 2, "worker": worker, "tokenizer": cards(replicas=1)}
    with weights(cluster, namespace):
        roll(cluster, namespace, service(**spec, engine={"contextLength": 256}), look)
        first = set(groups(cluster, namespace))
        serving.clear()
        roll(cluster, namespace, service(**spec, engine={"contextLength": 512}), look)
    assert not first & set(groups(cluster, namespace))
    assert min(serving) >= 2 - unavailable


def test_row_35_tokenizers_look_where_only_workers_that_fit_are_found(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    led_to: dict[str, set[str]] = {}
    """Cohorts of the workers found under the name of each cohort."""

    def look(_workers: list[dict[str, Any]]) -> None:
        services = listed(cluster, namespace, "services")
        pods = [pod["metadata"]["labels"] for pod in listed(cluster, namespace, "pods")]
        for found in services:
            cohort = found["metadata"]["labels"].get(labels.COHORT)
            if cohort is not None:
                chosen = found["spec"]["selector"].items()
                met = {one[labels.COHORT] for one in pods if chosen <= one.items()}
                led_to.setdefault(cohort, set()).update(met)

    def revised_args(seconds: int) -> dict[str, Any]:
        # Workers of other arguments cannot go on with streams, so no name leads to both.
        engine = {"args": [f"--queue-ageing={seconds}"]}
        spec = {"topology": "Split", "worker": NO_NODE, "tokenizer": cards(replicas=1)}
        return service(**spec, replicas=2, engine=engine)

    with weights(cluster, namespace):
        roll(cluster, namespace, revised_args(60), look)
        roll(cluster, namespace, revised_args(61), look)
    assert len(led_to) == 2
    assert led_to == {cohort: {cohort} for cohort in led_to}
    for pod in listed(cluster, namespace, "pods"):
        if pod["metadata"]["labels"][labels.ROLE] == labels.ROLE_TOKENIZER:
            (container,) = pod["spec"]["containers"]
            cohort = pod["metadata"]["labels"][labels.COHORT]
            assert f"chat-leaders-{cohort}" in str(container["args"])


def test_row_43_scaling_down_takes_the_group_first_that_does_not_serve(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def index(pod: dict[str, Any]) -> str:
        return str(pod["metadata"]["name"]).split("-")[-2]

    apply(cluster, namespace, service(replicas=3, worker=NO_NODE))
    wait_for("three pods", lambda: len(workers(cluster, namespace)) == 3)
    for pod in workers(cluster, namespace):
        if index(pod) != "1":
            as_ready(cluster, pod)

    def num_ready() -> int:
        return int(role_of(cluster, namespace, "worker").get("readyGroups", 0))

    wait_for("two are seen ready", lambda: num_ready() == 2)
    apply(cluster, namespace, service(replicas=2, worker=NO_NODE))
    wait_for("one goes", lambda: len(groups(cluster, namespace)) == 2)
    assert {index(pod) for pod in workers(cluster, namespace) if not is_leaving(pod)} == {"0", "2"}


# -- pods -------------------------------------------------------------------------------------


def test_rows_37_38_and_56_a_pod_has_the_time_that_the_spec_gives_to_start_and_to_end(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    worker = {**NO_NODE, "drain": {"timeoutSeconds": 777}}
    engine = {"startupDeadlineSeconds": 45 * 60}
    apply(cluster, namespace, service(worker=worker, engine=engine))
    (pod,) = wait_for("its pod", lambda: workers(cluster, namespace))
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 777
    assert "777" in container["lifecycle"]["preStop"]["exec"]["command"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 45 * 60
    # A kubelet asks for liveness only after the startup probe has succeeded.
    assert container["livenessProbe"]


def test_row_54_paused_leaves_the_edit_of_a_hand_until_it_goes_on(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def replicas() -> int:
        found = get(cluster, "deployment", "chat-tokenizer", "-n", namespace)
        return int(found["spec"]["replicas"]) if found else 0

    spec = {"topology": "Split", "worker": NO_NODE}
    apply(cluster, namespace, service(**spec))
    wait_for("tokenizers", lambda: replicas() == 2)
    apply(cluster, namespace, service(**spec, paused=True))
    wait_until_told(cluster, namespace, "Reason: Paused")
    cluster.kubectl("scale", "deployment/chat-tokenizer", "--replicas=5", "-n", namespace)

    def num_unschedulable() -> int:
        return int(role_of(cluster, namespace, "tokenizer").get("unschedulable", 0))

    wait_for("the edit was seen", lambda: len(listed(cluster, namespace, "pods")) == 6)
    wait_for("and told", lambda: num_unschedulable() == 5)
    assert replicas() == 5
    apply(cluster, namespace, service(**spec))
    wait_for("it is put right", lambda: replicas() == 2)


def test_row_58_a_claim_for_one_node_is_refused_where_pods_may_be_on_several(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local-disks",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    apply(cluster, namespace, claim)
    apply(cluster, namespace, service(replicas=2, worker=NO_NODE))
    wait_until_told(
        cluster,
        namespace,
        "Reason: ClaimNotShareable",
        "weights of storage class local-disks with access modes ReadWriteOnce",
        "use a claim with access mode ReadOnlyMany or ReadWriteMany",
    )
    assert not groups(cluster, namespace)
    apply(cluster, namespace, service(replicas=1, worker=NO_NODE))
    wait_for("one pod may have it", lambda: groups(cluster, namespace))


# -- what the installation brings -------------------------------------------------------------


def test_row_64_no_webhook_and_no_conversion_stands_between_people_and_their_objects(
    installed: Cluster,
) -> None:
    hooks = "validatingwebhookconfiguration,mutatingwebhookconfiguration"
    assert get(installed, hooks) is None
    for definition in get(installed, "crd")["items"]:
        assert definition["spec"].get("conversion", {"strategy": "None"}) == {"strategy": "None"}
    services = get(installed, "apiservice")["items"]
    assert [item["metadata"]["name"] for item in services if item["spec"].get("service")] == []


def test_row_17_an_unknown_field_is_refused_where_it_is_applied(
    installed: Cluster, namespace: str
) -> None:
    with pytest.raises(KubectlError) as caught:
        apply(installed, namespace, service(engine={"contextLenght": 512}))
    assert "engine.contextLenght" in str(caught.value)
    assert get(installed, "misvc", "-n", namespace) is None


def _names() -> list[str]:
    """The shortest, the longest, and some between."""
    chance = random.Random(66)
    inner = "abcxyz0189-"
    between = [
        "".join((chance.choice("az"), *chance.choices(inner, k=size), chance.choice("z9")))
        for size in (1, 12, 25, MAX_NAME_LENGTH - 3)
    ]
    full = MAX_NAME_LENGTH
    return ["m", "m" * full, f"a{'-' * (full - 2)}9", *between]


def test_row_66_objects_of_the_longest_names_are_accepted_and_find_each_other(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    names = _names()
    for name in names:
        made = service(topology="Split", worker=NO_NODE)
        made["metadata"]["name"] = name
        apply(cluster, namespace, made)

    def pods() -> list[dict[str, Any]]:
        return listed(cluster, namespace, "pods")

    wait_for("pods of all", lambda: len(pods()) == 3 * len(names))
    for name in names:
        assert condition(cluster, namespace, name, "Accepted")["status"] == "True"
        assert condition(cluster, namespace, name, "Degraded").get("status") != "True"

    def existing(kind: str) -> dict[str, dict[str, Any]]:
        found = listed(cluster, namespace, kind)
        return {item["metadata"]["name"]: item for item in found}

    services, secrets, accounts = (existing(kind) for kind in ("service", "secret", "sa"))
    for pod in pods():
        spec = pod["spec"]
        assert spec["serviceAccountName"] in accounts
        mounted = {v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
        assert mounted
        assert mounted <= secrets.keys()
    for group in existing("statefulset").values():
        assert group["spec"]["serviceName"] in services
        # Its pods carry a label with its name and a hash.
        assert len(group["metadata"]["name"]) <= 52
    for name, found in services.items():
        wanted = found["spec"]["selector"].items()
        assert any(wanted <= pod["metadata"]["labels"].items() for pod in pods()), name
    for found in (*existing("pdb").values(), *existing("networkpolicy").values()):
        selector = found["spec"].get("selector") or found["spec"]["podSelector"]
        labelled = selector["matchLabels"].items()
        owned = found["metadata"]["labels"].get(labels.ROLE)
        assert owned is None or any(labelled <= p["metadata"]["labels"].items() for p in pods())


@pytest.mark.parametrize("name", ["m" * (MAX_NAME_LENGTH + 1), "m" * 253, "9m", "m.m"])
def test_row_66_a_name_that_could_not_be_used_everywhere_is_refused_at_once(
    installed: Cluster, namespace: str, name: str
) -> None:
    made = service()
    made["metadata"]["name"] = name
    path = f"/apis/serving.mizzen.dev/v1alpha1/namespaces/{namespace}/inferenceservices"
    with pytest.raises(ApiError) as caught:
        installed.api.call("POST", f"{path}?dryRun=All", made)
    assert caught.value.status == 422
    message = json.loads(str(caught.value).partition(": ")[2])["message"]
    assert f"the name must have at most {MAX_NAME_LENGTH} characters" in message
