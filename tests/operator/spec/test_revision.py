"""The revision changes exactly when a worker pod does; the cohort when pods no longer fit."""

import json
from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.render.worker_group import worker_group
from mizzen_operator.spec.resolve import Resolved

SPLIT: dict[str, Any] = {"topology": "Split"}
UNIFIED: dict[str, Any] = {"topology": "Unified"}
POD_CHANGES: list[dict[str, Any]] = [
    {"model": {"source": {"pvc": {"claimName": "other"}}}},
    {"model": {"source": {"pvc": {"path": "other.gguf"}}}},
    {"engine": {"images": {"worker": "other:1"}}},
    {"engine": {"imagePullPolicy": "Always"}},
    {"engine": {"imagePullSecrets": [{"name": "registry"}]}},
    {"engine": {"args": ["--max-running-requests", "4"]}},
    {"engine": {"env": [{"name": "A", "value": "1"}]}},
    {"engine": {"contextLength": 1024}},
    {"engine": {"pageSize": 16}},
    {"engine": {"kvTokens": 4096}},
    {"engine": {"dtype": "float32"}},
    {"engine": {"startupDeadlineSeconds": 61}},
    {"worker": {"parallelism": {"tensor": 2}}},
    {"worker": {"parallelism": {"pipeline": 2}}},
    {"worker": {"parallelism": {"data": 2}}},
    {"worker": {"parallelism": {"nodes": 2}}},
    {"worker": {"gpu": {"countPerNode": 1}}},
    {"worker": {"gpu": {"countPerNode": 1, "resourceName": "amd.com/gpu"}}},
    {"worker": {"resources": {"limits": {"cpu": 4}}}},
    {"worker": {"resources": {"requests": {"memory": "4Gi"}}}},
    {"worker": {"drain": {"timeoutSeconds": 1}}},
    {"worker": {"podTemplate": {"spec": {"priorityClassName": "high"}}}},
    {"worker": {"podTemplate": {"metadata": {"labels": {"team": "a"}}}}},
]
OTHER_CHANGES: list[dict[str, Any]] = [
    {"replicas": 5},
    {"paused": True},
    {"stopped": True},
    {"updatePolicy": "Follow"},
    {"networkPolicy": "Off"},
    {"routing": {"service": {"type": "LoadBalancer", "port": 8080}}},
    {"worker": {"rollout": {"maxSurge": 1}}},
    {"worker": {"gpu": {"class": "nvidia-l4"}}},
    {"worker": {"gpu": {"memory": "24Gi"}}},
    {"worker": {"podTemplate": {}}},
    {"worker": {"podTemplate": {"spec": {}, "metadata": None}}},
]
KEY_CHANGES: list[dict[str, Any]] = [
    {"security": {"keyRotation": "2027-01-01"}},
    {"security": {"keyRotation": "2027-01-02"}},
]
COHORT_CHANGES = POD_CHANGES[:3] + [POD_CHANGES[index] for index in (5, 7, 10)]


def _template(service: Resolved) -> str:
    """The pod template without the hashes themselves."""
    group = worker_group(service, 0)
    text = json.dumps(group["spec"]["template"], sort_keys=True)
    return text.replace(service.revision, "REV").replace(service.cohort, "COHORT")


@pytest.mark.parametrize("base", [SPLIT, UNIFIED], ids=["split", "unified"])
@pytest.mark.parametrize("change", POD_CHANGES, ids=str)
def test_what_changes_a_pod_changes_the_revision(
    base: dict[str, Any], change: dict[str, Any]
) -> None:
    before, after = resolved(**base), resolved(**base, **change)
    assert _template(before) != _template(after)
    assert before.revision != after.revision


@pytest.mark.parametrize("base", [SPLIT, UNIFIED], ids=["split", "unified"])
@pytest.mark.parametrize("change", OTHER_CHANGES, ids=str)
def test_nothing_else_does(base: dict[str, Any], change: dict[str, Any]) -> None:
    before, after = resolved(**base), resolved(**base, **change)
    assert _template(before) == _template(after)
    assert (before.revision, before.cohort) == (after.revision, after.cohort)


@pytest.mark.parametrize("change", POD_CHANGES, ids=str)
def test_cohort_follows_what_both_sides_must_agree_upon(change: dict[str, Any]) -> None:
    has_changed = resolved(**SPLIT).cohort != resolved(**SPLIT, **change).cohort
    assert has_changed is (change in COHORT_CHANGES)


def test_each_rotation_is_a_cohort_with_a_secret_of_its_own() -> None:
    services = [resolved(**SPLIT), *(resolved(**SPLIT, **change) for change in KEY_CHANGES)]
    assert len({service.cohort for service in services}) == len(services)
    assert len({service.revision for service in services}) == len(services)
    volumes = [
        volume["secret"]["secretName"]
        for service in services
        for volume in worker_group(service, 0)["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert volumes[0] == "demo-curve"
    assert len(set(volumes)) == len(services)
    assert all(name.startswith("demo-curve-") for name in volumes[1:])


def test_a_frontend_image_moves_no_worker() -> None:
    change = {"engine": {"images": {"frontend": "other:1"}}}
    before, after = resolved(**SPLIT), resolved(**SPLIT, **change)
    assert (before.revision, before.cohort) == (after.revision, after.cohort)


def test_the_served_name_is_known_where_http_is() -> None:
    change = {"model": {"servedName": "x"}}
    assert resolved(**SPLIT).revision == resolved(**SPLIT, **change).revision
    assert resolved(**UNIFIED).revision != resolved(**UNIFIED, **change).revision
    assert resolved(**UNIFIED).cohort == resolved(**UNIFIED, **change).cohort


def test_writing_a_default_out_changes_nothing() -> None:
    written = {"engine": {"dtype": "auto", "args": []}, "worker": {"parallelism": {"tensor": 1}}}
    assert resolved(**SPLIT).revision == resolved(**SPLIT, **written).revision


def test_row_1_revisions_of_this_release_are_pinned() -> None:
    """A change of these moves every running pod at the operator's upgrade."""
    assert (resolved(**SPLIT).revision, resolved(**SPLIT).cohort) == ("c2qn8w", "fsxd2x")
    assert resolved(**UNIFIED).revision == "6l4m4d"
