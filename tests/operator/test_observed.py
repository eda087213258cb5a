"""Snapshots are read from API objects as the API server writes them."""

from datetime import UTC, datetime

from mizzen_operator.observed import (
    claim_of,
    deployment_of,
    pod_of,
    service_facts_of,
    service_of,
    stateful_set_of,
)
from mizzen_operator.report.events import event_of

META = {
    "name": "x",
    "namespace": "default",
    "uid": "u",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"a": "b"},
    "ownerReferences": [
        {"uid": "other", "controller": False},
        {"uid": "owner", "controller": True},
    ],
}


def _object(kind: str, **parts: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "metadata": META, **parts}


def test_a_stateful_set_without_status_has_no_ready_replicas() -> None:
    facts = stateful_set_of(_object("StatefulSet", spec={"replicas": 2}))
    assert (facts.replicas, facts.ready_replicas, facts.update_revision) == (2, 0, "")
    assert facts.child.owner_uid == "owner"
    assert facts.child.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert not facts.child.deleting


def test_a_deployment_is_observed_when_its_generation_is() -> None:
    status = {"readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}
    assert not deployment_of(_object("Deployment", spec={"replicas": 1}, status=status)).is_observed
    status["observedGeneration"] = 2
    assert deployment_of(_object("Deployment", spec={"replicas": 1}, status=status)).is_observed


def test_a_pod_tells_why_it_waits() -> None:
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "message": "old"},
            {"type": "Ready", "status": "False"},
        ],
        "containerStatuses": [
            {
                "name": "mizzen",
                "restartCount": 4,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"reason": "Error", "exitCode": 2}},
            }
        ],
    }
    facts = pod_of(_object("Pod", spec={"nodeName": "n1"}, status=status))
    assert (facts.waiting_reason, facts.waiting_message) == ("CrashLoopBackOff", "back-off 40s")
    assert (facts.restarts, facts.last_exit) == (4, "Error, exit code 2")
    assert (facts.is_ready, facts.unschedulable_message, facts.node_name) == (False, "", "n1")
    assert facts.started_at is None


def test_other_containers_of_a_pod_are_told_but_do_not_count() -> None:
    failed = {"terminated": {"reason": "Error", "exitCode": 3, "message": "no route"}}
    done = {"terminated": {"reason": "Completed", "exitCode": 0}}
    status = {
        "initContainerStatuses": [{"name": "first", "restartCount": 0, "state": done}],
        "containerStatuses": [
            {"name": "side", "restartCount": 9, "started": False, "lastState": failed,
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
            {"name": "mizzen", "restartCount": 0, "started": True,
             "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}},
        ],
    }  # fmt: skip
    facts = pod_of(_object("Pod", status=status))
    assert facts.restarts == 0
    assert facts.started_at == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert (facts.waiting_reason, facts.has_started) == ("CrashLoopBackOff", False)
    assert facts.waiting_message == "container side: back-off"
    assert facts.last_exit == "container side: Error, exit code 3: no route"


def test_what_comes_before_the_containers_is_what_they_wait_for() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    later = {"state": {"waiting": {"reason": "PodInitializing"}}}
    status = {
        "initContainerStatuses": [{"name": "first", **waiting}],
        "containerStatuses": [{"name": "mizzen", **later}],
    }
    facts = pod_of(_object("Pod", status=status))
    assert (facts.waiting_reason, facts.last_exit) == ("ImagePullBackOff", "")
    assert facts.waiting_message == "container first: no such image"


def test_a_container_that_is_held_up_is_told_before_one_that_is_being_made() -> None:
    held_up = {"reason": "ErrImagePull", "message": "no such image"}
    for name, expected in (("mizzen", "no such image"), ("side", "container side: no such image")):
        making = {"name": "early", "state": {"waiting": {"reason": "ContainerCreating"}}}
        waits = {"name": name, "state": {"waiting": held_up}}
        facts = pod_of(_object("Pod", status={"containerStatuses": [making, waits]}))
        assert (facts.waiting_reason, facts.waiting_message) == ("ErrImagePull", expected)


def test_a_pod_that_runs_tells_since_when() -> None:
    running = {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
    status = {"containerStatuses": [{"name": "mizzen", "restartCount": 0, "state": running}]}
    started_at = pod_of(_object("Pod", status=status)).started_at
    assert started_at == datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_a_pending_pod_carries_the_schedulers_message() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    facts = pod_of(_object("Pod", status={"phase": "Pending", "conditions": [condition]}))
    assert facts.unschedulable_message == "0/1 nodes are available"


def test_addresses_of_a_balancer_and_modes_of_a_claim() -> None:
    balancer = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "a.example"}]}}
    service = service_facts_of(_object("Service", spec={}, status=balancer))
    assert service.ingress_addresses == ("192.0.2.1", "a.example")
    claim = claim_of(
        _object(
            "PersistentVolumeClaim",
            spec={"accessModes": ["ReadOnlyMany"]},
            status={"phase": "Bound"},
        )
    )
    assert (claim.phase, claim.access_modes) == ("Bound", ("ReadOnlyMany",))


def test_the_service_itself() -> None:
    service = service_of(_object("InferenceService", status={"replicas": 1}))
    assert (service.generation, service.status, service.deleting) == (2, {"replicas": 1}, False)


def test_a_pod_tells_whether_it_started_and_until_when_it_ends() -> None:
    running = {"name": "mizzen", "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}
    for started in (True, False):
        status = {"containerStatuses": [{**running, "started": started}]}
        assert pod_of(_object("Pod", status=status)).has_started is started
    assert not pod_of(_object("Pod", status={})).has_started
    leaving = {**META, "deletionTimestamp": "2026-01-01T00:05:00Z"}
    child = pod_of({**_object("Pod", status={}), "metadata": leaving}).child
    assert child.deleting
    assert child.ends_at == datetime(2026, 1, 1, 0, 5, tzinfo=UTC)


def test_events_of_both_forms_tell_how_often_and_when() -> None:
    about = {"kind": "Pod", "name": "p", "uid": "u1"}
    older = event_of(
        _object(
            "Event",
            involvedObject=about,
            type="Warning",
            reason="BackOff",
            message="a\n b",
            count=4,
            lastTimestamp="2026-01-01T00:00:09Z",
        )
    )
    assert (older.about_kind, older.about_name, older.about_uid) == ("Pod", "p", "u1")
    assert (older.is_warning, older.reason, older.message, older.count) == (
        True, "BackOff", "a b", 4,
    )  # fmt: skip
    assert older.last_at == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
    series = {"count": 7, "lastObservedTime": "2026-01-01T00:00:10.5Z"}
    newer = event_of(
        _object("Event", type="Normal", eventTime="2026-01-01T00:00:01Z", series=series)
    )
    assert (newer.is_warning, newer.count) == (False, 7)
    assert newer.last_at == datetime(2026, 1, 1, 0, 0, 10, 500_000, tzinfo=UTC)
    assert event_of(_object("Event")).last_at == datetime(2026, 1, 1, tzinfo=UTC)
