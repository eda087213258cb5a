"""Weights that are fetched: one Job, pods when they are whole, pinned, kept while needed."""

from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    Call,
    FakeCluster,
    OperatorDied,
)
from tests.operator.fake_jobs import JOB, end_fetch
from tests.operator.fake_operator import (
    NAMESPACE,
    Clock,
    FakeOperator,
    condition,
    converge,
    service_manifest,
    service_ref,
)
from tests.operator.spec.rule_examples import patched

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.errors import ForbiddenError
from mizzen_operator.render import labels
from mizzen_operator.render.history import fetched_weights_of
from mizzen_operator.store import CLAIM, CONTROLLER_REVISION, POD, SERVICE_KIND, ObjectRef

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"
DONE = {"reason": "Done", "message": "all there", "resolvedRevision": COMMIT, "bytes": 1024}
HUB = {"repository": "org/model"}
WITH_TOKEN = {"huggingFace": {"tokenSecretRef": {"name": "hub", "key": "token"}}}


def fetched(**spec: Any) -> dict[str, Any]:
    """An InferenceService with weights of a hub."""
    model = {"source": {"huggingFace": HUB}, "cache": {"size": "10Gi", "storageClassName": "nfs"}}
    return service_manifest(**patched({"model": model}, spec))


def begun(cluster: FakeCluster | None = None, **spec: Any) -> FakeOperator:
    """An operator whose service waits for its Job."""
    cluster = cluster or FakeCluster()
    cluster.put(SERVICE_KIND, fetched(**spec))
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    return operator


def served(**spec: Any) -> FakeOperator:
    """An operator at rest whose service serves fetched weights."""
    operator = begun(**spec)
    end_fetch(operator.cluster, **DONE)
    converge(operator)
    assert condition(operator.cluster, "Ready")["status"] == "True"
    return operator


def change(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, fetched(**spec))
    converge(operator)


def names(cluster: FakeCluster, kind: Any) -> list[str]:
    return [ref.name for ref in cluster.refs(kind)]


def reason(cluster: FakeCluster, kind: str = "ModelReady") -> tuple[str, str]:
    found = condition(cluster, kind)
    return found["status"], found["reason"]


def groups(cluster: FakeCluster) -> list[dict[str, Any]]:
    return cluster.objects(STATEFULSET)


def claims_mounted(cluster: FakeCluster) -> set[str]:
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for kind in (STATEFULSET, DEPLOYMENT)
        for workload in cluster.objects(kind)
        for volume in workload["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }


def events(cluster: FakeCluster) -> list[str]:
    return [item["reason"] for item in cluster.objects(EVENT)]


def remove(cluster: FakeCluster, kind: Any, name: str) -> None:
    cluster.remove(ObjectRef(kind=kind, namespace=NAMESPACE, name=name))


# -- gating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["Split", "Unified"])
def test_no_pod_that_needs_the_weights_is_made_before_they_are_whole(topology: str) -> None:
    operator = begun(topology=topology)
    cluster = operator.cluster
    (claim,), (job,) = names(cluster, CLAIM), names(cluster, JOB)
    assert groups(cluster) == cluster.objects(DEPLOYMENT) == []
    assert reason(cluster) == reason(cluster, "Ready") == ("False", "Downloading")
    assert reason(cluster, "Available") == ("False", "WeightsNotReady")
    assert reason(cluster, "Placed") == ("True", "NothingToPlace")
    assert (
        f"fetching hf://org/model onto claim {claim}" in condition(cluster, "ModelReady")["message"]
    )
    end_fetch(cluster, **DONE)
    converge(operator)
    assert reason(cluster) == ("True", "Loaded")
    assert reason(cluster, "Ready")[0] == "True"
    assert claims_mounted(cluster) == {claim}
    assert (names(cluster, CLAIM), names(cluster, JOB)) == ([claim], [job])


def test_what_was_resolved_is_shown_and_noted_with_the_revision() -> None:
    cluster = served().cluster
    (claim,) = names(cluster, CLAIM)
    status = cluster.find(service_ref())["status"]
    assert status["resolvedModel"] == {
        "source": "hf://org/model",
        "revision": COMMIT,
        "bytes": 1024,
        "claim": claim,
        "retained": False,
    }
    stored = [item for item in cluster.objects(CONTROLLER_REVISION) if _is_ours(item)]
    assert [COMMIT in item["metadata"]["annotations"][labels.FETCHED] for item in stored] == [True]


@pytest.mark.parametrize("size", ["1e400", "NaN", "null", "[]"])
def test_a_damaged_note_counts_as_none(size: str) -> None:
    note = f'{{"claim": "c", "claimUid": "u", "revision": "r", "bytes": {size}}}'
    assert fetched_weights_of({labels.FETCHED: note}) is None


def _is_ours(item: dict[str, Any]) -> bool:
    return item["metadata"]["ownerReferences"][0]["kind"] == SERVICE_KIND.kind


def test_a_service_at_rest_is_not_written() -> None:
    operator = served()
    num_writes = len(operator.cluster.writes)
    operator.reconcile_all()
    assert operator.cluster.writes[num_writes:] == []


def test_row_57_one_download_for_all_groups_however_often_they_crash() -> None:
    operator = served(replicas=16)
    cluster = operator.cluster
    assert len(groups(cluster)) == 16
    for pod in cluster.objects(POD):
        ref = ObjectRef(kind=POD, namespace=NAMESPACE, name=pod["metadata"]["name"])
        waits = {"waiting": {"reason": "CrashLoopBackOff"}}
        container = {"name": "mizzen", "restartCount": 9, "state": waits}
        crashed = {"containerStatuses": [container]}
        cluster.edit(ref, lambda item, crashed=crashed: item["status"].update(crashed))
    operator.run()
    operator.reconcile_all()
    jobs = [call for call in cluster.calls if call.verb == "create" and call.ref.kind == JOB]
    assert len(jobs) == 1
    # Pods that serve reach DNS only, so they could not download even if they wanted to.
    assert all("models" in str(item["spec"]["template"]["spec"]) for item in groups(cluster))


# -- a Job that fails, and one that is deleted --------------------------------------------------


def test_an_end_for_good_is_told_with_the_downloaders_sentence() -> None:
    operator = begun()
    cluster = operator.cluster
    (job,) = names(cluster, JOB)
    end_fetch(cluster, 1, reason="NotFound", message="org/model has no revision main.")
    converge(operator)
    assert reason(cluster) == reason(cluster, "Ready") == ("False", "NotFound")
    message = condition(cluster, "ModelReady")["message"]
    assert message == (
        "hf://org/model: org/model has no revision main; mend it and delete "
        f"Job {job} to try again, or change the spec"
    )
    assert reason(cluster, "Degraded") == ("True", "NotFound")
    assert reason(cluster, "Progressing") == ("False", "WeightsNotReady")
    assert groups(cluster) == []
    assert "NotFound" in events(cluster)


def test_a_pod_that_cannot_end_is_named_for_only_one_may_write() -> None:
    operator = begun()
    cluster = operator.cluster
    (pod,) = cluster.objects(POD)
    ref = ObjectRef(kind=POD, namespace=NAMESPACE, name=pod["metadata"]["name"])
    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.edit(ref, lambda item: item["metadata"].update(ending))
    operator.run()
    message = condition(cluster, "ModelReady")["message"]
    assert message.endswith(f"pod {ref.name} on node node0 has to end first")


def test_deleting_a_failed_job_tries_again() -> None:
    operator = begun()
    cluster = operator.cluster
    end_fetch(cluster, 1, reason="Unauthorized", message="the token may not read it")
    converge(operator)
    (job,) = names(cluster, JOB)
    remove(cluster, JOB, job)
    converge(operator)
    assert names(cluster, JOB) == [job]
    assert reason(cluster) == ("False", "Downloading")
    end_fetch(cluster, **DONE)
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"


def test_a_rate_limit_is_tried_again_and_fails_after_the_back_off() -> None:
    operator = begun()
    cluster = operator.cluster
    for attempt in range(1, 8):
        end_fetch(cluster, 75, reason="RateLimited", message="429 until 12:00", bytes=5 * attempt)
        converge(operator)
        message = condition(cluster, "ModelReady")["message"]
        assert "429 until 12:00" in message
        if attempt < 7:
            assert reason(cluster) == ("False", "Downloading")
            assert f"attempt {attempt + 1}; the last one ended with {5 * attempt} bytes" in message
            assert reason(cluster, "Degraded")[0] == "False"
    assert reason(cluster) == ("False", "RateLimited")
    assert reason(cluster, "Degraded") == ("True", "RateLimited")


def test_between_two_attempts_the_last_word_is_the_reason() -> None:
    operator = begun()
    end_fetch(operator.cluster, 75, reason="Unreachable", message="no route to the hub")
    operator.run()
    assert reason(operator.cluster) == ("False", "Unreachable")


def test_a_crash_without_a_word_shows_the_end_of_its_log() -> None:
    operator = begun()
    cluster = operator.cluster
    for _ in range(7):
        end_fetch(cluster, 137)
        converge(operator)
    assert reason(cluster) == ("False", "DownloadFailed")


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_deleted_job_is_made_anew_only_while_the_weights_are_not_there(is_ready: bool) -> None:  # noqa: FBT001
    operator = served() if is_ready else begun()
    cluster = operator.cluster
    (job,) = names(cluster, JOB)
    before = [item["metadata"]["uid"] for item in groups(cluster)]
    remove(cluster, JOB, job)
    converge(operator)
    assert names(cluster, JOB) == ([] if is_ready else [job])
    assert [item["metadata"]["uid"] for item in groups(cluster)] == before


def test_a_missing_secret_is_told() -> None:
    operator = begun(
        model={"source": {"huggingFace": {"tokenSecretRef": {"name": "t", "key": "k"}}}}
    )
    cluster = operator.cluster
    (pod,) = cluster.objects(POD)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    ref = ObjectRef(kind=POD, namespace=NAMESPACE, name=pod["metadata"]["name"])
    container = {"name": "mizzen", "state": {"waiting": waiting}}
    status = {"phase": "Pending", "containerStatuses": [container]}
    cluster.edit(ref, lambda item: item["status"].update(status))
    operator.run()
    assert reason(cluster) == ("False", "SecretMissing")
    assert 'secret "hub" not found' in condition(cluster, "ModelReady")["message"]


def test_other_credentials_are_another_job_on_the_same_claim() -> None:
    operator = begun()
    cluster = operator.cluster
    (claim,), (job,) = names(cluster, CLAIM), names(cluster, JOB)
    revision = cluster.find(service_ref())["status"]["updateRevision"]
    cluster.put(SERVICE_KIND, fetched(model={"source": WITH_TOKEN}))
    # The old pod takes its time to end: it may still write.
    (pod,) = cluster.objects(POD)
    ref = ObjectRef(kind=POD, namespace=NAMESPACE, name=pod["metadata"]["name"])
    cluster.edit(ref, lambda item: item["metadata"]["ownerReferences"][0].update(uid="gone"))
    operator.run()
    assert names(cluster, JOB) == []
    cluster.remove(ref)
    converge(operator)
    (new,) = names(cluster, JOB)
    assert new != job
    assert names(cluster, CLAIM) == [claim]
    assert cluster.find(service_ref())["status"]["updateRevision"] == revision


def test_credentials_may_change_when_the_weights_are_there() -> None:
    operator = served()
    before = pods_and_jobs(operator.cluster)
    change(operator, model={"source": WITH_TOKEN})
    assert pods_and_jobs(operator.cluster) == before
    assert reason(operator.cluster, "Ready")[0] == "True"


def pods_and_jobs(cluster: FakeCluster) -> list[str]:
    return [
        item["metadata"]["uid"] for kind in (STATEFULSET, JOB) for item in cluster.objects(kind)
    ]


# -- new weights --------------------------------------------------------------------------------


def test_old_weights_serve_until_the_new_ones_are_there() -> None:
    operator = served(replicas=2)
    cluster = operator.cluster
    old = {item["metadata"]["name"] for item in groups(cluster)}
    (old_claim,) = names(cluster, CLAIM)
    change(operator, replicas=2, model={"cache": {"refresh": "2"}})
    assert {item["metadata"]["name"] for item in groups(cluster)} == old
    assert claims_mounted(cluster) == {old_claim}
    assert len(names(cluster, CLAIM)) == 2
    assert reason(cluster, "Available")[0] == "True"
    assert reason(cluster, "Ready") == ("False", "Downloading")
    end_fetch(cluster, **{**DONE, "resolvedRevision": OTHER})
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"
    (new_claim,) = claims_mounted(cluster)
    assert new_claim != old_claim
    assert cluster.find(service_ref())["status"]["resolvedModel"]["revision"] == OTHER
    # The old claim is what a roll-back needs.
    assert sorted(names(cluster, CLAIM)) == sorted([old_claim, new_claim])
    change(operator, replicas=2)
    assert claims_mounted(cluster) == {old_claim}
    assert cluster.find(service_ref())["status"]["resolvedModel"]["revision"] == COMMIT
    assert reason(cluster, "Ready")[0] == "True"


def test_a_claim_goes_when_no_revision_needs_it() -> None:
    operator = served(revisionHistoryLimit=0)
    cluster = operator.cluster
    (old,) = names(cluster, CLAIM)
    change(operator, revisionHistoryLimit=0, model={"cache": {"refresh": "2"}})
    assert old in names(cluster, CLAIM)
    end_fetch(cluster, **DONE)
    converge(operator)
    assert len(names(cluster, CLAIM)) == 1
    assert old not in names(cluster, CLAIM)


def test_a_claim_that_was_never_filled_goes_with_its_spec() -> None:
    operator = begun()
    cluster = operator.cluster
    (old,) = names(cluster, CLAIM)
    change(operator, model={"cache": {"size": "20Gi"}})
    assert old not in names(cluster, CLAIM)
    assert len(names(cluster, CLAIM)) == len(names(cluster, JOB)) == 1


def test_a_change_that_needs_no_other_weights_fetches_nothing() -> None:
    operator = served()
    before = names(operator.cluster, CLAIM), names(operator.cluster, JOB)
    change(operator, engine={"contextLength": 512})
    assert (names(operator.cluster, CLAIM), names(operator.cluster, JOB)) == before
    assert reason(operator.cluster, "Ready")[0] == "True"
    assert cluster_revision(operator.cluster) == COMMIT


def cluster_revision(cluster: FakeCluster) -> str:
    found: str = cluster.find(service_ref())["status"]["resolvedModel"]["revision"]
    return found


def test_from_a_claim_of_the_user_to_fetched_weights_and_back() -> None:
    cluster = FakeCluster()
    users = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadOnlyMany"]},
        "status": {"phase": "Bound"},
    }
    cluster.put(CLAIM, users)
    cluster.put(SERVICE_KIND, service_manifest())
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    change(operator)
    assert claims_mounted(cluster) == {"weights"}
    end_fetch(cluster, **DONE)
    converge(operator)
    (own,) = set(names(cluster, CLAIM)) - {"weights"}
    assert claims_mounted(cluster) == {own}
    cluster.put(SERVICE_KIND, service_manifest())
    converge(operator)
    assert claims_mounted(cluster) == {"weights"}
    assert set(names(cluster, CLAIM)) == {own, "weights"}
    (source,) = cluster.find(service_ref())["status"]["resolvedModel"].values()
    assert source == "pvc://weights/m.gguf"


# -- pinning ------------------------------------------------------------------------------------


def test_a_lost_claim_is_filled_again_with_the_same_commit() -> None:
    operator = served()
    cluster = operator.cluster
    (claim,) = names(cluster, CLAIM)
    remove(cluster, CLAIM, claim)
    converge(operator)
    (job,) = cluster.objects(JOB)
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--revision") + 1] == COMMIT
    assert reason(cluster) == ("False", "Downloading")
    end_fetch(cluster, **DONE)
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"


def test_another_answer_of_the_source_is_not_served() -> None:
    operator = served()
    cluster = operator.cluster
    remove(cluster, CLAIM, names(cluster, CLAIM)[0])
    converge(operator)
    end_fetch(cluster, **{**DONE, "resolvedRevision": OTHER})
    converge(operator)
    assert reason(cluster) == ("False", "SourceChanged")
    change(operator, model={"cache": {"refresh": "now"}})
    end_fetch(cluster, **{**DONE, "resolvedRevision": OTHER})
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"
    assert cluster_revision(cluster) == OTHER


def test_a_claim_that_ends_is_waited_for() -> None:
    operator = served()
    cluster = operator.cluster
    (name,) = names(cluster, CLAIM)
    ref = ObjectRef(kind=CLAIM, namespace=NAMESPACE, name=name)
    ends = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/pvc-protection"]}
    cluster.edit(ref, lambda item: item["metadata"].update(ends))
    converge(operator)
    assert reason(cluster) == ("False", "VolumePending")
    assert "is being deleted" in condition(cluster, "ModelReady")["message"]
    assert len(groups(cluster)) == 1


# -- keeping, stopping, room --------------------------------------------------------------------


def test_a_retained_claim_outlives_the_service_and_is_named() -> None:
    operator = served(model={"cache": {"retain": True}})
    cluster = operator.cluster
    (claim,) = cluster.objects(CLAIM)
    assert "ownerReferences" not in claim["metadata"]
    assert events(cluster).count("WeightsRetained") == 1
    (event,) = [item for item in cluster.objects(EVENT) if item["reason"] == "WeightsRetained"]
    assert claim["metadata"]["name"] in event["message"]
    cluster.remove(service_ref())
    operator.run()
    assert len(names(cluster, CLAIM)) == 1
    # A service of the same name has a claim of its own, and is not stopped by this one.
    cluster.put(SERVICE_KIND, fetched(model={"cache": {"retain": True}}))
    converge(operator)
    assert len(names(cluster, CLAIM)) == 2
    assert reason(cluster) == ("False", "Downloading")


def test_a_retained_claim_stays_when_no_revision_needs_it() -> None:
    operator = served(revisionHistoryLimit=0, model={"cache": {"retain": True}})
    cluster = operator.cluster
    change(operator, revisionHistoryLimit=0, model={"cache": {"retain": True, "refresh": "2"}})
    end_fetch(cluster, **DONE)
    converge(operator)
    assert len(names(cluster, CLAIM)) == 2


def test_whether_to_retain_can_be_changed_without_moving_anything() -> None:
    operator = served()
    cluster = operator.cluster
    before = pods_and_jobs(cluster)
    for retain in (True, False):
        change(operator, model={"cache": {"retain": retain}})
        (claim,) = cluster.objects(CLAIM)
        assert ("ownerReferences" in claim["metadata"]) is not retain
        assert pods_and_jobs(cluster) == before
        assert reason(cluster, "Ready")[0] == "True"


def test_a_foreign_claim_of_that_name_is_left_alone() -> None:
    operator = begun()
    cluster = operator.cluster
    (claim,) = cluster.objects(CLAIM)
    cluster.put(SERVICE_KIND, {**fetched(), "spec": {**fetched()["spec"], "stopped": True}})
    converge(operator)
    name = claim["metadata"]["name"]
    foreign = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    remove(cluster, CLAIM, name)
    cluster.put(CLAIM, foreign)
    operator.reconcile_all()
    assert reason(cluster, "Accepted") == ("False", "NameConflict")


def test_a_stopped_service_does_not_fetch_and_goes_on_later() -> None:
    operator = begun()
    cluster = operator.cluster
    change(operator, stopped=True)
    assert names(cluster, JOB) == []
    assert reason(cluster) == ("False", "Stopped")
    assert len(names(cluster, CLAIM)) == 1
    change(operator)
    assert len(names(cluster, JOB)) == 1
    end_fetch(cluster, **DONE)
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"
    change(operator, stopped=True)
    assert groups(cluster) == []
    assert reason(cluster) == ("True", "Fetched")


def test_stopping_ends_the_pods_although_new_weights_are_awaited() -> None:
    operator = served()
    change(operator, model={"cache": {"refresh": "2"}})
    assert len(groups(operator.cluster)) == 1
    change(operator, stopped=True, model={"cache": {"refresh": "2"}})
    assert groups(operator.cluster) == []


def test_without_replicas_the_weights_are_fetched_all_the_same() -> None:
    operator = begun(replicas=0)
    assert len(names(operator.cluster, JOB)) == 1
    end_fetch(operator.cluster, **DONE)
    converge(operator)
    assert reason(operator.cluster) == ("True", "Fetched")


def test_a_claim_that_somebody_made_larger_is_left_so() -> None:
    operator = served()
    cluster = operator.cluster
    (name,) = names(cluster, CLAIM)
    ref = ObjectRef(kind=CLAIM, namespace=NAMESPACE, name=name)
    larger = {"requests": {"storage": "1Ti"}}
    cluster.edit(ref, lambda item: item["spec"].update(resources=larger))
    converge(operator)
    assert cluster.find(ref)["spec"]["resources"] == larger


def test_row_58_a_claim_that_waits_is_told_with_its_storage_class() -> None:
    cluster = FakeCluster()
    cluster.put(SERVICE_KIND, fetched())
    operator = FakeOperator(cluster, Clock())
    converge(operator, binds_claims=False)
    (pod,) = cluster.objects(POD)
    ref = ObjectRef(kind=POD, namespace=NAMESPACE, name=pod["metadata"]["name"])
    cluster.edit(ref, lambda item: item["spec"].pop("nodeName"))
    cluster.edit(ref, lambda item: item["status"].update(phase="Pending"))
    operator.run()
    assert reason(cluster) == ("False", "VolumePending")
    assert "of storage class nfs is Pending" in condition(cluster, "ModelReady")["message"]


def test_row_58_a_claim_for_one_node_is_refused_where_pods_may_be_on_several() -> None:
    operator = begun(replicas=2, model={"cache": {"accessMode": "ReadWriteOnce"}})
    assert reason(operator.cluster, "Accepted") == ("False", "ClaimNotShareable")
    assert "storage class nfs" in condition(operator.cluster, "Accepted")["message"]
    assert names(operator.cluster, CLAIM) == []


def test_a_full_quota_is_told_before_the_job_is_made() -> None:
    cluster = FakeCluster()

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == POD and manifest["metadata"]["labels"][labels.ROLE] == labels.ROLE_WEIGHTS:
            text = "pods is forbidden: exceeded quota: small, requested: pods=1, used: pods=4"
            raise ForbiddenError(text, said=text)

    cluster.admit = admit
    operator = begun(cluster)
    assert names(cluster, JOB) != []
    assert reason(cluster, "Placed") == ("False", "QuotaPending")
    cluster.admit = lambda ref, manifest: None
    converge(operator)
    end_fetch(cluster, **DONE)
    converge(operator)
    assert reason(cluster, "Ready")[0] == "True"


def test_a_policy_that_refuses_the_job_is_told_with_the_field() -> None:
    cluster = FakeCluster()

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == POD and manifest["metadata"]["labels"][labels.ROLE] == labels.ROLE_WEIGHTS:
            text = "maximum cpu usage per Container is 100m, but limit is 1"
            raise ForbiddenError(f"pods is forbidden: {text}", said=text)

    cluster.admit = admit
    begun(cluster)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidPodTemplate")
    assert "spec.model.cache.resources (cpu)" in accepted["message"]
    assert names(cluster, JOB) == []


# -- faults -------------------------------------------------------------------------------------


def life(cluster: FakeCluster, operator: FakeOperator) -> FakeOperator:
    """Creation, a download that fails once, serving, and new weights."""
    cluster.put(SERVICE_KIND, fetched(topology="Unified"))
    operator = lives(operator)
    end_fetch(cluster, 75, reason="RateLimited", message="429")
    operator = lives(operator)
    end_fetch(cluster, **DONE)
    operator = lives(operator)
    cluster.put(SERVICE_KIND, fetched(topology="Unified", model={"cache": {"refresh": "2"}}))
    operator = lives(operator)
    end_fetch(cluster, **{**DONE, "resolvedRevision": OTHER})
    return lives(operator)


def lives(operator: FakeOperator) -> FakeOperator:
    """The operator, or the one that goes on after its death, at rest."""
    while True:
        try:
            converge(operator)
        except OperatorDied:
            operator.die()
            operator = FakeOperator(operator.cluster, operator.clock)
        else:
            return operator


def outcome(cluster: FakeCluster) -> list[Any]:
    kinds = (CLAIM, JOB, STATEFULSET, DEPLOYMENT)
    shown = [
        (kind.kind, item["metadata"]["name"], item["spec"].get("template"))
        for kind in kinds
        for item in cluster.objects(kind)
    ]
    return [*shown, reason(cluster, "Ready"), cluster_revision(cluster)]


@pytest.mark.slow
def test_row_57_dying_after_any_write_leads_to_the_same_end() -> None:
    undisturbed = FakeCluster()
    life(undisturbed, FakeOperator(undisturbed, Clock()))
    num_writes = len(undisturbed.writes)
    assert num_writes > 20
    for fatal in range(num_writes):
        cluster = FakeCluster()
        count = iter(range(10_000))

        def die(call: Call, fatal: int = fatal, count: Any = count) -> None:
            if next(count) == fatal:
                raise OperatorDied(call)

        cluster.after_write = die
        life(cluster, FakeOperator(cluster, Clock()))
        assert outcome(cluster) == outcome(undisturbed), fatal
        jobs = [call for call in cluster.calls if (call.verb, call.ref.kind) == ("create", JOB)]
        assert len({call.ref for call in jobs}) == 2
