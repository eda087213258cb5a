"""MonitoringReady says which field asks for what the cluster lacks, why, and what to do."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.observed import Child, Lack, Observed, ObservedService
from mizzen_operator.status.monitoring import monitoring_ready

KINDS = ("ConfigMap", "PodMonitor", "PrometheusRule")


def _child(kind: str, owner: str, *, deleting: bool = False) -> Child:
    return Child(
        api_version="v1",
        kind=kind,
        name="demo-monitoring",
        uid=kind,
        resource_version="1",
        owner_uid=owner,
        labels={},
        annotations={},
        deleting=deleting,
    )


def _verdicts(
    asked: Mapping[str, Any] | None,
    children: tuple[Child, ...] = (),
    lacking: Mapping[str, Lack] | None = None,
) -> list[tuple[str, str, str]]:
    service = resolved(**({} if asked is None else {"observability": asked}))
    observed = Observed(
        service=ObservedService(
            name=service.name, namespace=service.namespace, uid=service.uid, generation=1
        ),
        children=children,
        lacking=lacking or {},
    )
    found = monitoring_ready(service, observed)
    return [(verdict.status, verdict.reason, verdict.message) for verdict in found]


UID = resolved().uid
ALL = tuple(_child(kind, UID) for kind in KINDS)


def test_who_does_not_ask_gets_no_verdict() -> None:
    off = dict.fromkeys(("podMonitor", "rules", "dashboard"), False)
    for asked in (None, off):
        assert _verdicts(asked, lacking={"PodMonitor": Lack.NOT_INSTALLED}) == []


def test_all_that_is_asked_for_must_be_there_and_ours() -> None:
    there = "ConfigMap, PodMonitor, PrometheusRule demo-monitoring"
    assert _verdicts({}, ALL) == [("True", "Applied", there)]
    for missing in (ALL[:2], (*ALL[:2], _child("PrometheusRule", "other"))):
        text = "PrometheusRule demo-monitoring does not exist yet"
        assert _verdicts({}, missing) == [("False", "NotApplied", text)]
    going = (*ALL[:2], _child("PrometheusRule", UID, deleting=True))
    assert _verdicts({}, going)[0][1] == "NotApplied"
    assert _verdicts({"rules": False}, ALL[:2])[0][0] == "True"


@pytest.mark.parametrize(
    ("lack", "sentence"),
    [
        (
            Lack.NOT_INSTALLED,
            "spec.observability.rules: this cluster does not know PrometheusRule; install the "
            "Prometheus Operator, which brings monitoring.coreos.com/v1, or set it to false",
        ),
        (
            Lack.NOT_ALLOWED,
            "spec.observability.rules: the operator has no right to PrometheusRule; install its "
            "chart with monitoring=true, or set it to false",
        ),
        (
            Lack.NO_ANSWER,
            "spec.observability.rules: the API server gives no list of PrometheusRule; wait, its "
            "error is in the operator's log, or set it to false",
        ),
        (
            Lack.NAME_TAKEN,
            "spec.observability.rules: the name demo-monitoring is taken: this service does not "
            "own the PrometheusRule that has it in this namespace; delete or rename that, or set "
            "it to false",
        ),
    ],
)
def test_what_the_cluster_lacks_is_one_sentence(lack: Lack, sentence: str) -> None:
    assert _verdicts({}, ALL, {"PrometheusRule": lack}) == [("False", lack.value, sentence)]
