"""``mizzen status`` over the fake cluster, and what each verb says when it cannot read."""

import json
import runpy
import sys
from typing import Any

import pytest
from tests.operator.fake_cluster import POD, STATEFULSET
from tests.operator.fake_operator import (
    FakeOperator,
    cluster_with_claim,
    converge,
    service_manifest,
    service_ref,
    started,
)
from tests.operator.fake_reader import FakeReader, put_event
from tests.operator.support.broken import (
    NO_GPU,
    break_pod,
    container,
    run,
    stamp,
    unschedulable,
    worker_pod,
)

from mizzen_operator import cli
from mizzen_operator.cluster.failures import NotFoundError, UnauthorizedError
from mizzen_operator.errors import ForbiddenError, UnavailableError
from mizzen_operator.store import SERVICE_KIND, kind_named
from mizzen_operator.support import verbs
from mizzen_operator.support.connection import ConnectError, Target

Capture = pytest.CaptureFixture[str]


def test_a_ready_service_is_told_with_its_roles_and_groups(capsys: Capture) -> None:
    operator = started(replicas=2)
    assert run(operator, "status") == 0
    out, err = capsys.readouterr()
    assert out.startswith("team/chat: ready for ")
    assert "topology Split, model chat, url http://chat.team.svc, revision " in out
    lines = [line.split() for line in out.splitlines()]
    assert ["worker", "2/2", "2", "0"] in lines
    assert ["tokenizer", "2/2", "2", "0"] in lines
    assert sum(line[-1:] == ["Ready"] for line in lines) == 2
    assert "CONDITION" not in out
    assert err == ""


def test_nothing_is_written_to_the_cluster() -> None:
    operator = started()
    before, calls = operator.cluster.objects(), len(operator.cluster.calls)
    for verb in ("status", "explain"):
        run(operator, verb, "chat")
    assert operator.cluster.objects() == before
    assert len(operator.cluster.calls) == calls


def test_an_unschedulable_pod_is_told_in_the_schedulers_words(capsys: Capture) -> None:
    operator = started(replicas=2)
    pod = break_pod(operator, unschedulable)
    put_event(operator.cluster, pod, "FailedScheduling", NO_GPU, at=operator.clock.now())
    assert run(operator, "status", "chat") == 1
    out = capsys.readouterr().out
    assert "team/chat: serves, but is not ready for" in out
    assert f"{pod['metadata']['name']} waits for a node: {NO_GPU}" in out
    name = pod["metadata"]["name"]
    assert f"1m ago: FailedScheduling on Pod {name} (3 times): {NO_GPU}" in out
    assert "Placed       False" in out


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'pulling "w:9"'}}},
            'its container, ImagePullBackOff: pulling "w:9"',
        ),
        (
            {
                "restartCount": 7,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m"}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            },
            "its container, CrashLoopBackOff: back-off 5m; last end: OOMKilled, exit code 137",
        ),
        (
            {"started": False, "state": {"running": {"startedAt": -200}}},
            "its startup probe, for 3m",
        ),
        (
            {"started": True, "state": {"running": {"startedAt": -5}}},
            "its readiness probe, for ",
        ),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, "its volumes and its image"),
        (
            {"state": {"terminated": {"reason": "Error", "exitCode": 2}}},
            "its container to run again; last end: Error, exit code 2",
        ),
    ],
)
def test_what_a_container_waits_for_is_told(
    facts: dict[str, Any], told: str, capsys: Capture
) -> None:
    operator = started()
    running = facts["state"].get("running")
    if running is not None:
        facts = {
            **facts,
            "state": {"running": {"startedAt": stamp(operator, running["startedAt"])}},
        }
    break_pod(operator, container(operator, **facts))
    assert run(operator, "status", "-o", "wide") == 1
    assert f"waits for {told}" in capsys.readouterr().out


def test_a_failed_probe_and_a_failed_mount_are_told_from_their_events(capsys: Capture) -> None:
    operator = started()
    start = {"running": {"startedAt": stamp(operator, -30)}}
    pod = break_pod(operator, container(operator, started=False, state=start))
    message = "Startup probe failed: HTTP probe failed with statuscode: 503"
    put_event(operator.cluster, pod, "Unhealthy", message)
    run(operator, "status")
    assert message in capsys.readouterr().out
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    break_pod(operator, container(operator, state=waiting))
    put_event(operator.cluster, pod, "FailedMount", "no such disk", at=operator.clock.now())
    run(operator, "status")
    assert "its volumes and its image: FailedMount: no such disk" in capsys.readouterr().out


def test_a_drain_is_told_with_its_deadline_although_its_group_is_gone(capsys: Capture) -> None:
    operator = started()
    cluster, ref = operator.cluster, worker_pod(operator.cluster)
    end = stamp(operator, 250)

    def leave(pod: dict[str, Any]) -> None:
        pod["metadata"]["deletionTimestamp"] = end
        pod["metadata"]["ownerReferences"][0]["uid"] = "a set that is gone"

    cluster.edit(ref, leave)
    run(operator, "status")
    out = capsys.readouterr().out
    assert f"Draining, {ref.name} waits for its end: it drains until {end} at the latest" in out
    operator.clock.now_s += 400
    run(operator, "status")
    assert "its end, which was due 2m" in capsys.readouterr().out


def test_a_status_that_is_behind_the_live_objects_is_not_trusted(capsys: Capture) -> None:
    operator = started()
    for ref in operator.cluster.refs(STATEFULSET):
        operator.cluster.edit(ref, lambda item: item["status"].update(readyReplicas=0))
    assert run(operator, "status") == 1
    out = capsys.readouterr().out
    assert "was ready when the operator last looked" in out
    assert "the status speaks of 1 ready workers, 0 are ready now" in out


def test_a_spec_that_the_operator_has_not_seen_is_not_ready(capsys: Capture) -> None:
    operator = started()
    operator.cluster.put(SERVICE_KIND, service_manifest(replicas=2))
    assert run(operator, "status") == 1
    assert "has seen generation 1 only, the spec is at 2" in capsys.readouterr().out


def test_a_service_that_nobody_looked_at_says_so(capsys: Capture) -> None:
    operator = started()
    operator.cluster.put(SERVICE_KIND, service_manifest("new"))
    assert run(operator, "status", "new") == 1
    out = capsys.readouterr().out
    assert "team/new: not looked at yet" in out
    assert "does it run? kubectl get pods -A -l app.kubernetes.io/name=mizzen-operator" in out
    assert "worker        0/1" in out


def test_a_service_that_is_being_deleted_is_not_ready(capsys: Capture) -> None:
    operator = started()
    operator.cluster.edit(
        service_ref(),
        lambda item: item["metadata"].update(deletionTimestamp=stamp(operator, 0)),
    )
    assert run(operator, "status") == 1
    assert "team/chat: is being deleted" in capsys.readouterr().out


def test_of_several_services_those_that_need_a_look_come_first(capsys: Capture) -> None:
    operator = started()
    operator.cluster.put(SERVICE_KIND, service_manifest("well"))
    converge(operator)
    break_pod(operator, unschedulable)
    assert run(operator, "status", "-A") == 1
    out = capsys.readouterr().out
    assert out.startswith("team/chat: does not serve for")
    assert "; worker 1/1, tokenizer 2/2" in out.splitlines()[-1]
    assert out.splitlines()[-1].startswith("team/well: ready for")


def test_events_of_others_are_not_told(capsys: Capture) -> None:
    operator = started()
    pod = break_pod(operator, unschedulable)
    other = {**pod, "metadata": {**pod["metadata"], "name": "other", "uid": "other"}}
    put_event(operator.cluster, other, "BackOff", "not ours")
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": "team", "uid": "x"},
    }
    put_event(operator.cluster, claim, "ProvisioningFailed", "no class")
    run(operator, "status")
    out = capsys.readouterr().out
    assert "not ours" not in out
    assert "ProvisioningFailed on PersistentVolumeClaim weights" in out


def test_json_holds_the_rows(capsys: Capture) -> None:
    operator = started(replicas=2)
    break_pod(operator, unschedulable)
    assert run(operator, "status", "-o", "json") == 1
    document = json.loads(capsys.readouterr().out)
    (service,) = document["services"]
    assert (service["name"], service["isReady"], service["isServing"]) == ("chat", False, True)
    worker = service["roles"][0]
    assert (worker["desired"], worker["ready"]) == (2, 1)
    (waiting,) = [
        pod["waitsFor"]["reason"]
        for group in worker["groups"]
        for pod in group["pods"]
        if pod["waitsFor"]
    ]
    assert waiting == "Unschedulable"
    assert document["notRead"] == []


# -- what cannot be read ----------------------------------------------------------------------


def test_an_empty_namespace_is_told(capsys: Capture) -> None:
    operator = FakeOperator(cluster_with_claim(), started().clock)
    assert run(operator, "status") == 0
    assert capsys.readouterr().err == "no InferenceService in namespace team (-A looks in all)\n"
    assert run(operator, "status", "-A") == 0
    assert capsys.readouterr().err == "no InferenceService in this cluster\n"


def test_a_name_that_is_not_there_is_answered_with_those_that_are(capsys: Capture) -> None:
    assert run(started(), "explain", "chaat") == 2
    err = capsys.readouterr().err
    assert err == (
        "mizzen explain: InferenceService chaat is not in namespace team: there are chat"
        " (-n looks elsewhere)\n"
    )


@pytest.mark.parametrize(
    ("plural", "error", "sentence"),
    [
        (
            "inferenceservices",
            UnavailableError("list: HTTP 503 Service Unavailable"),
            "the cluster at https://fake:6443 did not answer as it should",
        ),
        ("inferenceservices", UnauthorizedError("401"), "does not accept these credentials"),
        ("pods", ForbiddenError("list pods: no (HTTP 403)"), "ask for the rights to get and list"),
    ],
)
def test_what_hinders_reading_is_one_sentence(
    plural: str, error: Any, sentence: str, capsys: Capture
) -> None:
    operator = started()
    reader = FakeReader(operator.cluster, refusals={plural: error})
    assert run(operator, "status", reader=reader) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mizzen status: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_cluster_without_the_definition_is_told(capsys: Capture) -> None:
    operator = started()
    missing = {"inferenceservices": NotFoundError("404")}
    for arguments in ([], ["chat"]):
        reader = FakeReader(operator.cluster, refusals=dict(missing))
        assert run(operator, "status", *arguments, reader=reader) == 2
        err = capsys.readouterr().err
        assert "does not know the kind InferenceService: install the operator" in err


def test_what_may_not_be_read_is_left_out_and_told(capsys: Capture) -> None:
    operator = started()
    forbidden = ForbiddenError("403")
    refusals: dict[str, Any] = dict.fromkeys(
        ("events", "replicasets", "persistentvolumeclaims"), forbidden
    )
    assert run(operator, "status", reader=FakeReader(operator.cluster, refusals=refusals)) == 0
    out, err = capsys.readouterr()
    assert "team/chat: ready" in out
    assert sorted(line.split()[2] for line in err.splitlines()) == [
        "events",
        "persistentvolumeclaims",
        "replicasets.apps",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["chat", "-A"], "-A looks in every namespace: leave out the name"),
        (["-n", "x", "-A"], "-A looks in every namespace: leave out -n"),
        (["../x"], "'../x' is no name"),
        (["-n", "A"], "'A' is no namespace"),
    ],
)
def test_a_command_line_that_cannot_be_is_one_sentence(
    arguments: list[str], sentence: str, capsys: Capture
) -> None:
    assert run(started(), "status", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"mizzen status: {sentence}")


def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(capsys: Capture) -> None:
    def refuse(_: Target) -> Any:
        raise ConnectError("cannot use kubeconfig x: no")

    assert verbs.status_verb([], verbs.Surroundings(connect=refuse)) == 2
    assert capsys.readouterr().err == "mizzen status: cannot use kubeconfig x: no\n"


def test_all_verbs_are_there_without_the_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mizzen_operator"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mizzen_operator", run_name="__main__")
    assert ended.value.code == 2
    assert "plan,render-crds,prove-upgrade,status,explain,support-bundle" in capsys.readouterr().err
    assert cli.main(["deploy"]) == 2


def test_many_pods_are_told_in_few_lines(capsys: Capture) -> None:
    operator = started(tokenizer={"replicas": 8})
    for number, ref in enumerate(operator.cluster.refs(POD)):
        if "tokenizer" in ref.name:
            reason = f"Odd{number % 5}"
            operator.cluster.edit(
                ref,
                lambda pod, reason=reason: (
                    pod["status"]["conditions"][1].update(status="False"),
                    container(operator, state={"waiting": {"reason": reason}})(pod),
                ),
            )
    deployment = next(ref for ref in operator.cluster.refs(kind_named("apps/v1", "Deployment")))
    operator.cluster.edit(deployment, lambda item: item["status"].update(readyReplicas=0))
    operator.run()
    assert run(operator, "status") == 1
    out = capsys.readouterr().out
    assert "chat-tokenizer-0 and 1 more waits for its container, Odd0" in out
    assert "; and 2 more" in out
    assert run(operator, "explain", "chat") == 1
    out = capsys.readouterr().out
    assert "and 4 more pods: mizzen status -o wide shows them" in out
    assert "no remedy for Odd4" in out


def test_many_warnings_are_counted(capsys: Capture) -> None:
    operator = started()
    pod = break_pod(operator, unschedulable)
    for number in range(9):
        put_event(operator.cluster, pod, "FailedScheduling", f"try {number}")
    run(operator, "status")
    assert "older ones: -o wide shows them" in capsys.readouterr().out
    run(operator, "status", "-o", "wide")
    out = capsys.readouterr().out
    assert all(f"try {number}" in out for number in range(9))
