"""Monitoring comes and goes with what is asked for and with what the cluster has; serving stays."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator import fake_operator
from tests.operator.fake_cluster import STATEFULSET, Call, FakeCluster
from tests.operator.fake_operator import (
    NAMESPACE,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    service_ref,
    started,
)

from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.errors import (
    ClusterError,
    ForbiddenError,
    RejectedError,
    UnavailableError,
)
from mizzen_operator.store import OPTIONAL_KINDS, SERVICE_KIND, ObjectRef, ResourceKind

KINDS = CONFIG_MAP, POD_MONITOR, RULE = OPTIONAL_KINDS[:3]
ALL: dict[str, Any] = {"observability": {}}
NAME = "chat-monitoring"


def ref_of(kind: ResourceKind) -> ObjectRef:
    return ObjectRef(kind=kind, namespace=NAMESPACE, name=NAME)


def refuse(
    kinds: tuple[ResourceKind, ...], error: type[ClusterError], verbs: tuple[str, ...] = ()
) -> Callable[[Call], None]:
    """What the API server says to every call about these kinds, or to some verbs."""

    def before(call: Call) -> None:
        if call.ref.kind in kinds and (not verbs or call.verb in verbs):
            raise error(f"{call.verb} {call.ref.kind}: refused")

    return before


def monitored(before: Callable[[Call], None] | None = None, **spec: Any) -> FakeOperator:
    cluster = cluster_with_claim()
    if before is not None:
        cluster.before = before
    return started(cluster, **{**ALL, **spec})


def num_staying_groups(cluster: FakeCluster) -> int:
    """Groups that are not on their way out; they end with their pods, which nobody plays here."""
    groups = cluster.objects(STATEFULSET)
    return sum("deletionTimestamp" not in group["metadata"] for group in groups)


@pytest.fixture
def few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For worlds that never come to rest."""
    monkeypatch.setattr(fake_operator, "MAX_PASSES", 20)


def present(cluster: FakeCluster) -> list[ResourceKind]:
    return [kind for kind in KINDS if cluster.refs(kind)]


def ask(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, service_manifest(**spec))
    converge(operator)


def list_again(operator: FakeOperator) -> None:
    operator.run_lists()
    converge(operator)


def events(cluster: FakeCluster) -> list[tuple[str, str, str]]:
    return [
        (item["type"], item["reason"], item["message"])
        for item in cluster.objects()
        if item.get("kind") == "Event" and "MonitoringReady" in item["message"]
    ]


def is_serving(cluster: FakeCluster) -> bool:
    return bool(condition(cluster, "Ready")["status"] == "True")


def has_condition(cluster: FakeCluster) -> bool:
    service = cluster.find(service_ref())
    assert service is not None
    return "MonitoringReady" in [item["type"] for item in service["status"]["conditions"]]


def test_what_is_asked_for_is_there_and_at_rest_nothing_is_written() -> None:
    operator = monitored()
    cluster = operator.cluster
    assert [cluster.refs(kind) for kind in KINDS] == [[ref_of(kind)] for kind in KINDS]
    ready = condition(cluster, "MonitoringReady")
    assert (ready["status"], ready["reason"]) == ("True", "Applied")
    num_writes = len(cluster.writes)
    for _ in range(3):
        operator.clock.now_s += 1000
        list_again(operator)
    assert cluster.writes[num_writes:] == []
    assert operator.store.oldest_expectation_s(now_s=operator.clock.now_s + 1e6) == 0
    assert events(cluster) == []


def test_nobody_who_does_not_ask_hears_of_it() -> None:
    operator = started()
    assert present(operator.cluster) == []
    assert not has_condition(operator.cluster)


def test_what_is_switched_off_is_deleted() -> None:
    operator = monitored()
    cluster = operator.cluster
    ask(operator, observability={"dashboard": False})
    assert present(cluster) == [POD_MONITOR, RULE]
    ask(operator, observability={"podMonitor": False, "dashboard": False})
    assert present(cluster) == [RULE]
    ask(operator)
    assert present(cluster) == []
    assert not has_condition(cluster)
    assert is_serving(cluster)


def test_a_new_life_of_the_operator_knows_what_is_there() -> None:
    former = monitored()
    former.die()
    cluster = former.cluster
    num_writes = len(cluster.writes)
    operator = FakeOperator(cluster, former.clock)
    converge(operator)
    assert not [call for call in cluster.writes[num_writes:] if call.ref.kind in KINDS]
    ask(operator)
    assert present(cluster) == []


def test_without_the_api_the_condition_says_so_and_all_else_goes_on() -> None:
    operator = monitored(refuse((POD_MONITOR, RULE), NotFoundError))
    cluster = operator.cluster
    assert present(cluster) == [CONFIG_MAP]
    missing = condition(cluster, "MonitoringReady")
    assert (missing["status"], missing["reason"]) == ("False", "ApiNotInstalled")
    assert missing["message"] == (
        "spec.observability.podMonitor and spec.observability.rules: this cluster does not know "
        "PodMonitor or PrometheusRule; install the Prometheus Operator, which brings "
        "monitoring.coreos.com/v1, or set them to false"
    )
    assert is_serving(cluster)
    assert operator.errors == []
    ((kind, reason, _),) = events(cluster)
    assert (kind, reason) == ("Warning", "ApiNotInstalled")
    tried = [call for call in cluster.calls if call.ref.kind in (POD_MONITOR, RULE)]
    assert {call.verb for call in tried} == {"list"}
    ask(operator, observability={"podMonitor": False, "rules": False})
    assert condition(cluster, "MonitoringReady")["status"] == "True"


def test_an_api_that_is_installed_later_is_used_after_the_next_list() -> None:
    operator = monitored(refuse((POD_MONITOR, RULE), NotFoundError))
    cluster = operator.cluster
    cluster.before = lambda call: None
    operator.reconcile_all()
    assert present(cluster) == [CONFIG_MAP]
    list_again(operator)
    assert present(cluster) == list(KINDS)
    assert condition(cluster, "MonitoringReady")["status"] == "True"


def test_an_api_that_is_removed_takes_its_objects_with_it() -> None:
    operator = monitored()
    cluster = operator.cluster
    for kind in (POD_MONITOR, RULE):
        cluster.remove(ref_of(kind))
    cluster.before = refuse((POD_MONITOR, RULE), NotFoundError)
    list_again(operator)
    assert condition(cluster, "MonitoringReady")["reason"] == "ApiNotInstalled"
    ask(operator, replicas=2, **ALL)
    assert len(cluster.refs(STATEFULSET)) == 2
    assert operator.errors == []
    cluster.before = lambda call: None
    list_again(operator)
    assert present(cluster) == list(KINDS)


def test_an_api_that_is_away_for_a_moment_costs_no_write() -> None:
    operator = monitored()
    cluster = operator.cluster
    cluster.before = refuse((POD_MONITOR, RULE), NotFoundError)
    list_again(operator)
    assert condition(cluster, "MonitoringReady")["status"] == "False"
    cluster.before = lambda call: None
    list_again(operator)
    assert condition(cluster, "MonitoringReady")["status"] == "True"
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert cluster.writes[num_writes:] == []
    tried = [call for call in cluster.writes if call.ref.kind in (POD_MONITOR, RULE)]
    assert [call.verb for call in tried] == ["create", "create"]


def test_without_the_right_the_condition_names_the_chart() -> None:
    operator = monitored(refuse(KINDS, ForbiddenError))
    cluster = operator.cluster
    assert present(cluster) == []
    missing = condition(cluster, "MonitoringReady")
    assert missing["reason"] == "NotAllowed"
    assert "install its chart with monitoring=true" in missing["message"]
    assert is_serving(cluster)
    assert operator.errors == []


def test_a_right_that_is_taken_away_stops_no_pruning_of_other_kinds() -> None:
    operator = monitored(replicas=2)
    cluster = operator.cluster
    cluster.before = refuse(KINDS, ForbiddenError)
    list_again(operator)
    ask(operator, replicas=1, observability={"dashboard": False})
    assert len(cluster.refs(STATEFULSET)) == 1
    assert present(cluster) == list(KINDS)
    assert operator.errors == []


@pytest.mark.usefixtures("few_passes")
@pytest.mark.parametrize("error", [RejectedError, ForbiddenError, UnavailableError])
def test_an_object_that_is_refused_holds_up_nothing_else(error: type[ClusterError]) -> None:
    operator = monitored(replicas=2)
    cluster = operator.cluster
    cluster.remove(ref_of(RULE))
    operator.run_lists()
    cluster.before = refuse((RULE,), error, ("create",))
    cluster.put(SERVICE_KIND, service_manifest(replicas=1, **ALL))
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert {type(item) for item in operator.errors} == {error}
    assert num_staying_groups(cluster) == 1
    missing = condition(cluster, "MonitoringReady")
    assert (missing["reason"], missing["message"]) == (
        "NotApplied",
        f"PrometheusRule {NAME} does not exist yet",
    )
    is_lasting = error is not UnavailableError
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"] == "True") is is_lasting
    assert ("prometheusrules.monitoring.coreos.com: refused" in degraded["message"]) is is_lasting
    cluster.before = lambda call: None
    converge(operator)
    assert condition(cluster, "MonitoringReady")["status"] == "True"
    assert condition(cluster, "Degraded")["status"] == "False"


@pytest.mark.usefixtures("few_passes")
def test_a_deletion_that_is_refused_holds_up_nothing_else() -> None:
    operator = monitored(replicas=2)
    cluster = operator.cluster
    cluster.before = refuse((RULE,), UnavailableError, ("delete",))
    cluster.put(SERVICE_KIND, service_manifest(replicas=1))
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert num_staying_groups(cluster) == 1
    assert present(cluster) == [RULE]
    cluster.before = lambda call: None
    converge(operator)
    assert present(cluster) == []


def test_what_a_person_changed_or_deleted_is_put_right_after_the_next_list() -> None:
    operator = monitored()
    cluster = operator.cluster
    before = cluster.find(ref_of(POD_MONITOR))
    assert before is not None
    cluster.edit(
        ref_of(POD_MONITOR), lambda manifest: manifest["spec"].update(podMetricsEndpoints=[])
    )
    cluster.remove(ref_of(CONFIG_MAP))
    list_again(operator)
    after = cluster.find(ref_of(POD_MONITOR))
    assert after is not None
    assert after["spec"] == before["spec"]
    assert present(cluster) == list(KINDS)


def test_a_deleted_object_that_shall_change_is_made_anew_at_once() -> None:
    operator = monitored()
    cluster = operator.cluster
    cluster.remove(ref_of(POD_MONITOR))
    ask(operator, observability={"interval": "30s"})
    found = cluster.find(ref_of(POD_MONITOR))
    assert found is not None
    assert found["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
    assert len(operator.errors) == 1


@pytest.mark.usefixtures("few_passes")
@pytest.mark.parametrize("error", [ForbiddenError, UnavailableError])
def test_a_deleted_object_that_cannot_be_looked_at_holds_up_nothing_else(
    error: type[ClusterError],
) -> None:
    operator = monitored(replicas=2)
    cluster = operator.cluster
    cluster.remove(ref_of(POD_MONITOR))
    cluster.before = refuse((POD_MONITOR,), error, ("get",))
    cluster.put(SERVICE_KIND, service_manifest(replicas=1, observability={"interval": "30s"}))
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert num_staying_groups(cluster) == 1
    assert present(cluster) == [CONFIG_MAP, RULE]
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"] == "True") is (error is ForbiddenError)
    cluster.before = lambda call: None
    converge(operator)
    assert present(cluster) == list(KINDS)
    assert condition(cluster, "Degraded")["status"] == "False"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.kind))
def test_a_foreign_object_of_that_name_is_not_touched_and_holds_up_nothing_else(
    kind: ResourceKind,
) -> None:
    cluster = cluster_with_claim()
    metadata = {"name": NAME, "namespace": NAMESPACE}
    stored = cluster.put(kind, {"metadata": metadata, "data": {"a": "b"}})
    operator = started(cluster, **ALL)
    assert cluster.find(ref_of(kind)) == stored
    assert present(cluster) == list(KINDS)
    assert is_serving(cluster)
    assert operator.errors == []
    missing = condition(cluster, "MonitoringReady")
    assert (missing["status"], missing["reason"]) == ("False", "NameConflict")
    assert f"this service does not own the {kind.kind} that has it" in missing["message"]
    ask(operator, replicas=2, **ALL)
    ask(operator, replicas=1, **ALL)
    assert num_staying_groups(cluster) == 1
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert {call.verb for call in cluster.writes[num_writes:]} == {"create"}
    cluster.remove(ref_of(kind))
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    operator.clock.now_s += wait_s
    operator.reconcile_all()
    assert condition(cluster, "MonitoringReady")["status"] == "True"


def test_paused_says_what_is_not_there() -> None:
    operator = started(paused=True, **ALL)
    assert condition(operator.cluster, "MonitoringReady")["reason"] == "Paused"
    assert [kind for kind, _, _ in events(operator.cluster)] == ["Normal"]
    assert present(operator.cluster) == []
