from dataclasses import replace
from typing import Any

import pytest

from mizzen_operator.cluster.undone_edits import (
    QUIET_S,
    Edit,
    is_due,
    occurrence_of,
    still_quiet,
    undone_edits,
)
from mizzen_operator.render.labels import APPLIED_HASH
from mizzen_operator.store import ROLE_SCALER, ObjectUid, StoredObject, kind_named, stored_object

SERVICE = kind_named("v1", "Service")
PORTS = [{"port": 80, "protocol": "TCP", "name": "http"}]


def rendered(applied_hash: str = "h", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "chat",
            "namespace": "team",
            "annotations": {APPLIED_HASH: applied_hash},
        },
        "spec": spec,
    }


def live(manifest: dict[str, Any], *managed: tuple[str, dict[str, Any]]) -> StoredObject:
    metadata = {
        **manifest["metadata"],
        "uid": "u",
        "resourceVersion": "7",
        "managedFields": [
            {"manager": manager, "operation": "Update", "fieldsV1": tree}
            for manager, tree in managed
        ],
    }
    return stored_object(SERVICE, {**manifest, "metadata": metadata})


def spec_of(*names: str) -> dict[str, Any]:
    return {"f:spec": {f"f:{name}": {} for name in names}}


def test_each_manager_is_told_with_what_it_changed() -> None:
    wanted = rendered(a=1, b=2, c=3)
    edited = live(rendered(a=9, b=8, c=3), ("kubectl-edit", spec_of("a")), ("argo", spec_of("b")))
    assert undone_edits(wanted, before=edited, after=live(wanted)) == [
        Edit(manager="argo", fields=(".spec.b",)),
        Edit(manager="kubectl-edit", fields=(".spec.a",)),
    ]


def test_items_of_lists_are_found_by_their_keys() -> None:
    tree = {"f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:name": {}}}}}
    other = {"f:spec": {"f:ports": {'k:{"port":81,"protocol":"TCP"}': {"f:name": {}}}}}
    wanted = rendered(ports=PORTS)
    edited = live(rendered(ports=[{**PORTS[0], "name": "x"}]), ("a", tree), ("b", other))
    (edit,) = undone_edits(wanted, before=edited, after=live(wanted))
    assert edit == Edit(manager="a", fields=(".spec.ports[0].name",))


def test_what_is_whole_to_the_api_server_belongs_to_its_owner() -> None:
    wanted = rendered(values=["x", {"y": 1}])
    edited = live(rendered(values=["x", {"y": 2}]), ("a", spec_of("values")))
    (edit,) = undone_edits(wanted, before=edited, after=live(wanted))
    assert edit == Edit(manager="a", fields=(".spec.values[1].y",))


def test_of_what_was_removed_nobody_is_known() -> None:
    wanted = rendered(a=1)
    edited = live(rendered(), ("kubectl-edit", spec_of("b")))
    edits = undone_edits(wanted, before=edited, after=live(wanted))
    assert edits == [Edit(manager="", fields=(".spec.a",))]
    assert "somebody changed .spec.a of Service chat" in occurrence_of(edits[0], edited).message


def test_another_spec_is_no_edit_and_hides_none() -> None:
    wanted = rendered("next", a=1, b=2)
    ours = ("mizzen-controller", spec_of("a"))
    before = live(rendered("last", a=0, b=2), ours)
    assert undone_edits(wanted, before=before, after=live(wanted)) == []
    before = live(rendered("last", a=0, b=9), ours, ("kubectl", spec_of("b")))
    assert undone_edits(wanted, before=before, after=live(wanted)) == [
        Edit(manager="kubectl", fields=(".spec.b",))
    ]


def test_a_scale_that_was_obeyed_is_no_edit_when_the_spec_changes_it() -> None:
    wanted, scaled = rendered(replicas=3), rendered(replicas=5)
    before = replace(live(scaled, ("autoscaler", spec_of("replicas"))), kind=ROLE_SCALER)
    assert undone_edits(wanted, before=before, after=live(wanted)) == []


def test_what_stays_different_was_not_put_right() -> None:
    wanted, other = rendered(a=1), rendered(a=9)
    assert undone_edits(wanted, before=live(other), after=live(other)) == []


@pytest.mark.parametrize("last_s", [None, -1.0, 0.0])
def test_a_manager_is_told_after_a_while(last_s: float | None) -> None:
    assert is_due(last_s, QUIET_S)


@pytest.mark.parametrize("last_s", [0.5, QUIET_S])
def test_a_manager_is_not_told_sooner(last_s: float) -> None:
    assert not is_due(last_s, QUIET_S)


def test_what_does_not_count_any_more_is_forgotten() -> None:
    old, recent = (ObjectUid("u"), "kubectl-1"), (ObjectUid("u"), "kubectl-2")
    assert still_quiet({old: 0.0, recent: 1.0}, QUIET_S) == {recent: 1.0}


def test_an_event_names_some_fields_no_values_and_one_version() -> None:
    edited = live(rendered(a="secret"))
    edit = Edit(manager="argo", fields=tuple(f".spec.{name}" for name in "abcdefg"))
    told = occurrence_of(edit, edited)
    assert told.message.startswith(
        "argo changed .spec.a, .spec.b, .spec.c, .spec.d, .spec.e and 2 more of Service chat,"
    )
    assert "secret" not in told.message
    later = occurrence_of(edit, replace(edited, resource_version=8))
    assert later.identity != told.identity == occurrence_of(edit, edited).identity
