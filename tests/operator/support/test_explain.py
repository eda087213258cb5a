"""``mizzen explain`` over the fake cluster: chains from service to event, and remedies."""

from typing import Any

import pytest
from tests.operator.fake_cluster import POD, STATEFULSET, FakeCluster
from tests.operator.fake_operator import (
    converge,
    service_manifest,
    service_ref,
    started,
)
from tests.operator.fake_reader import put_event
from tests.operator.support.broken import (
    NO_GPU,
    break_pod,
    container,
    run,
    stamp,
    unschedulable,
    worker_pod,
)

from mizzen_operator.store import ROLE_SCALER, SERVICE_KIND, ObjectRef, kind_named
from mizzen_operator.support.fleet import REPLICA_SET

Capture = pytest.CaptureFixture[str]


def test_the_chain_goes_from_service_to_event_and_ends_with_remedies(capsys: Capture) -> None:
    operator = started(replicas=2)
    pod = break_pod(operator, unschedulable)
    put_event(operator.cluster, pod, "FailedScheduling", NO_GPU, at=operator.clock.now())
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    steps = ["service chat", "role worker: 1 of 2", "group chat-w-", "pod chat-w-", "event 1m ago"]
    places = [out.index(f"└─ {step}") for step in steps]
    assert places == sorted(places)
    assert "Placed is False" in out
    assert "Progressing is True" in out
    assert "to mend Unschedulable: make room for the pod" in out
    assert out.count("to mend Unschedulable") == 1


def test_a_refused_spec_is_explained_by_its_field_alone(capsys: Capture) -> None:
    operator = started(prefill={"replicas": 1})
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "Accepted is False" in out
    assert "spec.prefill: prefill is not available in this version" in out
    assert "to mend NotAvailable: this version does not have" in out


def test_a_missing_claim_is_explained_with_the_claims_events(capsys: Capture) -> None:
    operator = started(FakeCluster())
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": "team", "uid": "x"},
    }
    operator.cluster.edit(
        next(ref for ref in operator.cluster.refs(STATEFULSET)),
        lambda item: item["status"].update(readyReplicas=0),
    )
    operator.run()
    put_event(operator.cluster, claim, "ProvisioningFailed", "no class")
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "ModelReady is False" in out
    assert "└─ PersistentVolumeClaim weights" in out
    assert "no class" in out
    assert out.count("to mend ClaimNotFound: create the claim") == 1
    assert "ResolvedRefs is False" in out


def test_row_17_a_missing_secret_is_explained_by_the_pod_that_needs_it(capsys: Capture) -> None:
    operator = started()
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub-token" not found'}
    break_pod(operator, container(operator, state={"waiting": waiting}))
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "ResolvedRefs is False" in out
    assert 'waits for its container, SecretMissing: secret "hub-token" not found' in out
    assert out.count("to mend SecretMissing: make what the message names") == 1


def test_a_group_without_pods_is_explained_by_who_should_make_them(capsys: Capture) -> None:
    operator = started()
    cluster, ref = operator.cluster, worker_pod(operator.cluster)
    group = ref.name.rpartition("-")[0]
    cluster.remove(ref)
    set_ref = ObjectRef(kind=STATEFULSET, namespace=ref.namespace, name=group)
    cluster.edit(set_ref, lambda item: item["status"].update(readyReplicas=0))
    operator.run()
    made_by = cluster.find(set_ref)
    assert made_by is not None
    put_event(cluster, made_by, "FailedCreate", "exceeded quota: gpus")
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "└─ no pod exists" in out
    assert "FailedCreate on StatefulSet" in out
    assert "exceeded quota: gpus" in out


def test_tokenizers_without_pods_are_explained_by_their_replica_set(capsys: Capture) -> None:
    operator = started()
    cluster = operator.cluster
    for ref in [ref for ref in cluster.refs(POD) if "tokenizer" in ref.name]:
        cluster.remove(ref)
    deployment = next(ref for ref in cluster.refs(kind_named("apps/v1", "Deployment")))
    cluster.edit(deployment, lambda item: item["status"].update(readyReplicas=0))
    operator.run()
    owner = cluster.find(deployment)
    assert owner is not None
    labels = owner["metadata"]["labels"]
    replica_set = cluster.put(
        REPLICA_SET,
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "chat-tokenizer-5d", "namespace": "team", "labels": labels},
        },
    )
    put_event(cluster, replica_set, "FailedCreate", "exceeded quota: pods")
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "role tokenizer: 0 of 2 pods are ready" in out
    assert "FailedCreate on ReplicaSet chat-tokenizer-5d" in out


def test_a_well_service_has_nothing_to_explain(capsys: Capture) -> None:
    assert run(started(), "explain", "chat") == 0
    assert "there is nothing to explain" in capsys.readouterr().out


def test_a_drain_of_a_well_service_is_explained_as_what_it_is(capsys: Capture) -> None:
    operator = started(replicas=2)
    cluster, ref = operator.cluster, worker_pod(operator.cluster)
    gone = cluster.find(ref)
    assert gone is not None
    cluster.put(SERVICE_KIND, service_manifest(replicas=1))
    converge(operator)
    gone["metadata"]["deletionTimestamp"] = stamp(operator, 60)
    gone["metadata"]["name"] = "chat-w-gone-7-0"
    gone["metadata"]["ownerReferences"][0]["uid"] = "gone"
    cluster.put(POD, gone)
    assert run(operator, "explain", "chat") == 0
    out = capsys.readouterr().out
    assert "every condition is as wished, but some pods wait for something" in out
    assert "group chat-w-gone-7: Draining" in out
    assert "to mend Draining: wait: its requests end or move on" in out


def test_monitoring_that_is_missing_is_explained_although_the_service_is_ready(
    capsys: Capture,
) -> None:
    operator = started()
    operator.cluster.put(SERVICE_KIND, service_manifest("well"))
    converge(operator)

    def lack(service: dict[str, Any]) -> None:
        service["status"]["conditions"].append(
            {
                "type": "MonitoringReady",
                "status": "False",
                "reason": "ApiNotInstalled",
                "message": "no PodMonitor here",
                "lastTransitionTime": stamp(operator, 0),
            }
        )

    operator.cluster.edit(service_ref(), lack)
    assert run(operator, "explain", "chat") == 0
    out = capsys.readouterr().out
    assert "MonitoringReady is False for 0s: ApiNotInstalled: no PodMonitor here" in out
    assert "to mend ApiNotInstalled: install what the message names" in out
    assert run(operator, "status") == 0
    assert "no PodMonitor here" in capsys.readouterr().out


def test_who_asks_for_so_many_is_told(capsys: Capture) -> None:
    operator = started(replicas=1)
    scaler = ObjectRef(kind=ROLE_SCALER, namespace="team", name="chat-worker")
    operator.cluster.edit(scaler, lambda item: item["spec"].update(replicas=3))
    assert run(operator, "explain", "chat") == 1
    assert "InferenceRoleScaler chat-worker asks for 3; does it run?" in capsys.readouterr().out
    operator.run()
    assert run(operator, "explain", "chat") == 1
    text = "InferenceRoleScaler chat-worker asks for 3, the InferenceService for 1"
    assert f"1 of 3 groups are ready ({text})" in capsys.readouterr().out
