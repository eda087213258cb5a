"""Groups of several pods, and lost nodes, through the whole operator over the cluster in memory."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.operator.fake_cluster import STATEFULSET, Call, FakeCluster, OperatorDied
from tests.operator.fake_controllers import Controllers
from tests.operator.fake_operator import (
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    service_ref,
    started,
)

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.errors import ConflictError, ForbiddenError
from mizzen_operator.observed import pod_of
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Defaults
from mizzen_operator.store import POD, SECRET, SERVICE_KIND, ObjectRef, ref_of

TWO_NODES = {"worker": {"parallelism": {"tensor": 2, "nodes": 2}}}
NEXT = Defaults(frontend_image="mizzen/frontend:2", worker_image="mizzen/worker:2")


def workers(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [
        pod
        for pod in cluster.objects(POD)
        if pod["metadata"]["labels"][labels.ROLE] == labels.ROLE_WORKER
    ]


def epochs(cluster: FakeCluster) -> list[str]:
    return [pod["metadata"]["annotations"][labels.EPOCH] for pod in workers(cluster)]


def uids(cluster: FakeCluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in workers(cluster)}


def end_container(cluster: FakeCluster, rank: int) -> None:
    def change(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"][0]["restartCount"] += 1

    cluster.edit(ref_of(workers(cluster)[rank]), change)


def assert_rests(operator: FakeOperator) -> None:
    num_calls = len(operator.cluster.calls)
    operator.clock.now_s += 10_000
    operator.reconcile_all()
    assert [call for call in operator.cluster.calls[num_calls:] if call.is_write] == []


def test_row_22_a_pod_deleted_while_the_operator_is_away_restarts_its_group_once() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    before = uids(cluster)
    assert epochs(cluster) == ["0", "0"]
    operator.die()
    cluster.remove(ref_of(workers(cluster)[1]))
    Controllers(cluster).settle()
    num_calls = len(cluster.calls)

    successor = FakeOperator(cluster, operator.clock)
    converge(successor)
    assert epochs(cluster) == ["1", "1"]
    assert not uids(cluster) & before
    deleted = [call.ref.name for call in cluster.calls[num_calls:] if call.verb == "delete"]
    assert len(deleted) == 2
    assert condition(cluster, "Ready")["status"] == "True"
    assert_rests(successor)


def test_a_restart_survives_the_operator_s_death_after_any_write() -> None:
    def live(die_after: int) -> tuple[int, FakeCluster]:
        operator = started(**TWO_NODES)
        cluster, num_writes = operator.cluster, 0

        def count(_: Call) -> None:
            nonlocal num_writes
            num_writes += 1
            if num_writes == die_after:
                raise OperatorDied

        cluster.after_write = count
        end_container(cluster, 0)
        try:
            converge(operator)
        except OperatorDied:
            operator.die()
            operator = FakeOperator(cluster, operator.clock)
            converge(operator)
        assert_rests(operator)
        return num_writes, cluster

    num_writes, _ = live(die_after=0)
    assert num_writes > 3
    for die_after in range(1, num_writes + 1):
        _, cluster = live(die_after)
        assert epochs(cluster) == ["1", "1"], f"after write {die_after}"
        assert condition(cluster, "Ready")["status"] == "True"


def row(cluster: FakeCluster) -> dict[str, Any]:
    (found,) = cluster.find(service_ref())["status"]["groups"]
    return found


def test_the_status_and_an_event_tell_of_a_restart() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    assert row(cluster)["epoch"] == 0
    end_container(cluster, 0)
    converge(operator)
    found = row(cluster)
    assert (found["epoch"], found["state"]) == (1, "Ready")
    assert found["lastRestart"].endswith("Z RankRestarted")
    events = [event for event in cluster.objects(EVENT) if event["reason"] == "GroupRestarted"]
    assert len(events) == 1
    assert "starts anew as epoch 1" in events[0]["message"]


def test_row_24_a_group_out_of_budget_is_degraded_and_says_how_to_go_on() -> None:
    operator = started(worker={**TWO_NODES["worker"], "restart": {"maxRestarts": 1}})
    cluster, clock = operator.cluster, operator.clock
    end_container(cluster, 0)
    operator.run()
    Controllers(cluster).settle()
    end_container(cluster, 0)
    cluster.edit(ref_of(workers(cluster)[0]), not_ready)
    operator.run()
    assert (row(cluster)["state"], row(cluster)["reason"]) == ("Failed", "RestartBudgetExhausted")
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RestartBudgetExhausted")
    (ref,) = cluster.refs(STATEFULSET)
    remedy = f"kubectl annotate statefulset {ref.name} serving.mizzen.dev/restarts-"
    assert degraded["message"].endswith(remedy)
    clock.now_s += 1_000_000
    operator.reconcile_all()
    assert epochs(cluster) == ["1", "1"]

    cluster.edit(ref, lambda item: item["metadata"]["annotations"].pop(labels.RESTARTS))
    converge(operator)
    assert epochs(cluster) == ["2", "2"]
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_restart_that_waits_is_told_and_looked_at_in_time() -> None:
    operator = started(**TWO_NODES)
    cluster, clock = operator.cluster, operator.clock
    end_container(cluster, 0)
    converge(operator)
    end_container(cluster, 1)
    cluster.edit(ref_of(workers(cluster)[1]), not_ready)
    operator.run()
    assert (row(cluster)["state"], row(cluster)["reason"]) == ("Restarting", "RankRestarted")
    assert epochs(cluster) == ["1", "1"]
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    assert 0 < wait_s <= 30
    clock.now_s += wait_s
    operator.reconcile_all()
    converge(operator)
    assert epochs(cluster) == ["2", "2"]


def not_ready(pod: dict[str, Any]) -> None:
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "ContainersReady", "status": "False"},
        {"type": "Ready", "status": "False"},
    ]


def test_other_groups_are_untouched() -> None:
    operator = started(**TWO_NODES, replicas=2)
    cluster = operator.cluster
    kept = {pod["metadata"]["uid"] for pod in workers(cluster)[2:]}
    end_container(cluster, 0)
    converge(operator)
    assert epochs(cluster) == ["1", "1", "0", "0"]
    assert kept <= uids(cluster)


def test_an_upgrade_leaves_a_group_of_a_later_epoch_alone() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    end_container(cluster, 0)
    converge(operator)
    before, num_writes = workers(cluster), len(cluster.writes)
    operator.die()
    converge(FakeOperator(cluster, operator.clock, NEXT))
    # The status tells that other images could be followed.
    assert {call.ref.kind for call in cluster.writes[num_writes:]} <= {SECRET, SERVICE_KIND}
    assert workers(cluster) == before


def test_a_group_of_a_former_revision_keeps_its_epoch_and_starts_anew_too() -> None:
    operator = started(**TWO_NODES, replicas=2)
    cluster = operator.cluster
    end_container(cluster, 2)
    converge(operator)
    assert epochs(cluster) == ["0", "0", "1", "1"]
    engine = {"contextLength": 1024}
    cluster.put(SERVICE_KIND, service_manifest(**TWO_NODES, replicas=2, engine=engine))
    # One group is replaced, and the new one does not come up: the other goes on serving.
    cluster.lost_nodes.add("node0")
    controllers = Controllers(cluster)
    controllers.pods_drain = True
    operator.run()
    controllers.settle()
    operator.run()
    old = [item for item in workers(cluster) if "deletionTimestamp" not in item["metadata"]]
    assert {pod["metadata"]["annotations"][labels.EPOCH] for pod in old} <= {"0", "1"}
    sets = {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["annotations"][labels.EPOCH]
        for item in cluster.objects(STATEFULSET)
    }
    assert sorted(sets.values()) == ["0", "1"]


def test_state_that_was_written_meanwhile_is_not_written_over() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    (ref,) = cluster.refs(STATEFULSET)

    def interfere(call: Call) -> None:
        """Another process, whose Lease ran out in the middle of its write."""
        if call.ref == ref and call.verb == "patch":
            cluster.before = lambda _: None
            cluster.edit(ref, lambda item: set_epoch(item, "7"))

    cluster.before = interfere
    end_container(cluster, 0)
    converge(operator)
    assert [type(error) for error in operator.errors] == [ConflictError]
    assert set(epochs(cluster)) == {"8"}


def set_epoch(item: dict[str, Any], epoch: str) -> None:
    item["spec"]["template"]["metadata"]["annotations"][labels.EPOCH] = epoch


def test_what_the_store_does_not_know_is_not_rendered_as_new() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    end_container(cluster, 0)
    converge(operator)
    (ref,) = cluster.refs(STATEFULSET)
    metadata = cluster.find(ref)["metadata"]
    operator.die()
    cluster.edit(ref, lambda item: item["metadata"]["labels"].update(note="newer"))
    found = cluster.find(ref)
    operator.store.forget(metadata["uid"], at_version=int(metadata["resourceVersion"]))
    operator.reconcile_all()
    assert [type(error) for error in operator.errors] == [ConflictError]
    assert cluster.find(ref) == found


def as_unreachable(moment: datetime) -> Callable[[dict[str, Any]], None]:
    """What the node controller makes of a ready pod, and no kubelet ever does."""

    def change(pod: dict[str, Any]) -> None:
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "ContainersReady", "status": "True"},
            {
                "type": "Ready",
                "status": "False",
                "lastTransitionTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        ]

    return change


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "silent"])
@pytest.mark.parametrize("topology", ["Split", "Unified"])
def test_with_one_replica_the_service_comes_back_after_its_node_is_lost(
    topology: str, *, is_marked: bool
) -> None:
    operator = started(topology=topology)
    cluster, clock = operator.cluster, operator.clock
    cluster.now = clock.now
    (pod,) = workers(cluster)
    cluster.lost_nodes.add("node0")
    if is_marked:
        cluster.edit(ref_of(pod), as_unreachable(clock.now()))
    converge(operator)
    assert uids(cluster) == {pod["metadata"]["uid"]}, "while nobody evicts it, it may serve on"

    cluster.end_pod(ref_of(pod))
    converge(operator)
    assert uids(cluster) == {pod["metadata"]["uid"]}
    assert condition(cluster, "Available")["status"] == "False"
    wait_s = next(iter(operator.waits_s.values()))
    assert wait_s is not None
    grace_s = 0 if is_marked else pod["spec"]["terminationGracePeriodSeconds"]
    assert wait_s <= 120 + grace_s
    clock.now_s += wait_s + 1
    operator.reconcile_all()
    assert [
        call.grace_s for call in cluster.calls if call.ref == ref_of(pod) and call.is_write
    ] == [0]
    cluster.lost_nodes.clear()
    converge(operator)
    assert uids(cluster) != {pod["metadata"]["uid"]}
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_rollout_goes_on_past_a_lost_node() -> None:
    operator = started()
    cluster, clock = operator.cluster, operator.clock
    cluster.now = clock.now
    cluster.lost_nodes.add("node0")
    (old,) = cluster.refs(STATEFULSET)
    cluster.put(SERVICE_KIND, service_manifest(engine={"contextLength": 1024}))
    converge(operator)
    assert cluster.refs(STATEFULSET) == [old]
    clock.now_s += 1000
    operator.reconcile_all()
    cluster.lost_nodes.clear()
    converge(operator)
    (new,) = cluster.refs(STATEFULSET)
    assert new != old
    assert condition(cluster, "Ready")["status"] == "True"


def test_only_the_node_controller_marks_a_pod_this_way() -> None:
    operator = started()
    (pod,) = workers(operator.cluster)
    assert pod_of(pod).unreachable_since is None
    moment = operator.clock.now()
    as_unreachable(moment)(pod)
    assert pod_of(pod).unreachable_since == moment
    # A kubelet reports both alike.
    pod["status"]["conditions"][1]["status"] = "False"
    assert pod_of(pod).unreachable_since is None


def test_a_pod_that_is_going_does_not_count_as_ready() -> None:
    operator = started()
    cluster = operator.cluster
    cluster.now = operator.clock.now
    assert condition(cluster, "Available")["status"] == "True"
    (pod,) = workers(cluster)
    cluster.lost_nodes.add("node0")
    cluster.end_pod(ref_of(pod))
    operator.run()
    (ending,) = workers(cluster)
    assert pod_of(ending).is_ready
    until = ending["metadata"]["deletionTimestamp"]
    assert (row(cluster)["state"], row(cluster)["drainsUntil"]) == ("Draining", until)
    assert condition(cluster, "Available")["reason"] == "NoReadyGroup"


def test_a_pod_whose_stateful_set_is_gone_does_not_count_as_ready() -> None:
    operator = started()
    cluster = operator.cluster
    (pod,) = workers(cluster)
    cluster.put(SERVICE_KIND, service_manifest(replicas=0))
    converge(operator)
    orphan = {**pod, "metadata": {**pod["metadata"], "name": "left-over-0"}}
    orphan["metadata"].pop("resourceVersion")
    cluster.put(POD, orphan)
    operator.run()
    assert condition(cluster, "Available")["status"] == "False"


def test_restarts_are_counted_by_cause() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest(**TWO_NODES))
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    end_container(cluster, 1)
    converge(operator)
    assert operator.restarts == ["RankRestarted"]


def test_a_paused_service_is_left_alone() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(**TWO_NODES, paused=True))
    converge(operator)
    end_container(cluster, 0)
    converge(operator)
    assert epochs(cluster) == ["0", "0"]


def test_the_annotation_of_restarts_may_be_taken_away_by_hand() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    end_container(cluster, 0)
    converge(operator)
    (ref,) = cluster.refs(STATEFULSET)
    cluster.edit(ref, lambda item: item["metadata"]["annotations"].pop(labels.RESTARTS))
    converge(operator)
    assert labels.RESTARTS not in cluster.find(ref)["metadata"]["annotations"]
    assert epochs(cluster) == ["1", "1"]
    assert_rests(operator)


def test_what_drains_at_leisure_is_hastened_once() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    cluster.now = operator.clock.now
    cluster.lost_nodes.add("node0")
    first, second = workers(cluster)
    cluster.end_pod(ref_of(second))
    end_container(cluster, 0)
    operator.run()
    operator.reconcile_all()
    ends = [(call.ref.name, call.grace_s) for call in cluster.writes if call.verb == "delete"]
    assert sorted(ends) == [(pod["metadata"]["name"], 10) for pod in (first, second)]


def test_a_lost_pod_is_removed_also_while_a_refused_template_holds_everything() -> None:
    operator = started()
    cluster, clock = operator.cluster, operator.clock
    cluster.now = clock.now
    (pod,) = workers(cluster)

    def refuse(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if "--seed" in str(manifest.get("spec", "")) and ref.kind != SERVICE_KIND:
            raise ForbiddenError(f"{ref} is forbidden by policy")

    cluster.admit = refuse
    cluster.put(SERVICE_KIND, service_manifest(engine={"args": ["--seed", "1"]}))
    converge(operator)
    assert condition(cluster, "Accepted")["reason"] == "InvalidPodTemplate"
    cluster.lost_nodes.add("node0")
    cluster.end_pod(ref_of(pod))
    clock.now_s += 10_000
    operator.reconcile_all()
    assert cluster.find(ref_of(pod)) is None


def test_a_restart_asks_for_no_dry_run_since_its_template_lives() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    num_dry_runs = len(cluster.dry_runs)
    end_container(cluster, 0)
    converge(operator)
    assert epochs(cluster) == ["1", "1"]
    assert len(cluster.dry_runs) == num_dry_runs


def test_pods_on_a_lost_node_of_a_foreign_owner_are_left_alone() -> None:
    operator = started()
    cluster = operator.cluster
    cluster.now = operator.clock.now
    (pod,) = workers(cluster)
    foreign = {**pod, "metadata": {**pod["metadata"], "name": "foreign-0"}}
    foreign["metadata"]["ownerReferences"] = [
        {**pod["metadata"]["ownerReferences"][0], "uid": "somebody"}
    ]
    cluster.put(POD, foreign)
    cluster.lost_nodes.add("node0")
    ref = ObjectRef(kind=POD, namespace="team", name="foreign-0")
    cluster.end_pod(ref)
    operator.clock.now_s += 10_000
    operator.reconcile_all()
    assert cluster.find(ref) is not None
