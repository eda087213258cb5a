"""What is stored of a revision is enough to render its pods again, and nothing more."""

from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.spec.test_revision import OTHER_CHANGES, POD_CHANGES, SPLIT, UNIFIED

from mizzen_operator.render.names import stored_revision_name
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.resolve import Pinned, Resolved, resolve_with
from mizzen_operator.spec.stored import origin_of, stored_data

OLD = Pinned(template_version="v1", frontend_image="front:old", worker_image="worker:old")
TOKENIZER_CHANGE: dict[str, Any] = {"tokenizer": {"resources": {"limits": {"cpu": "2"}}}}


def _again(service: Resolved) -> Resolved:
    origin = origin_of(stored_data(service))
    assert origin is not None
    spec = origin.typed_spec()
    assert spec is not None
    read = InferenceService(
        name=service.name,
        namespace=service.namespace,
        uid=service.uid,
        generation=service.generation,
        spec=spec,
    )
    return resolve_with(read, origin.pinned)


@pytest.mark.parametrize("base", [SPLIT, UNIFIED], ids=["split", "unified"])
@pytest.mark.parametrize("change", [{}, *POD_CHANGES], ids=str)
def test_the_same_pods_come_back(base: dict[str, Any], change: dict[str, Any]) -> None:
    service = resolved(pinned=OLD, **base, **change)
    again = _again(service)
    assert (again.revision, again.cohort) == (service.revision, service.cohort)
    assert (again.pinned, again.frontend_image) == (OLD, service.frontend_image)
    assert stored_data(again) == stored_data(service)


@pytest.mark.parametrize("change", [*POD_CHANGES, TOKENIZER_CHANGE], ids=str)
def test_what_changes_a_pod_is_another_stored_revision(change: dict[str, Any]) -> None:
    before, after = resolved(**SPLIT), resolved(**SPLIT, **change)
    assert stored_revision_name(before) != stored_revision_name(after)


@pytest.mark.parametrize(
    "change", [*OTHER_CHANGES, {"tokenizer": {"replicas": 5}}, {"revisionHistoryLimit": 0}], ids=str
)
def test_what_changes_no_pod_is_the_same(change: dict[str, Any]) -> None:
    before, after = resolved(**SPLIT), resolved(**SPLIT, **change)
    assert stored_data(before) == stored_data(after)
    assert stored_revision_name(before) == stored_revision_name(after)


def test_another_pin_is_another_stored_revision() -> None:
    assert stored_revision_name(resolved()) != stored_revision_name(resolved(pinned=OLD))


def test_names_of_this_release_stay() -> None:
    """A change of these stores every service of an upgraded operator once more."""
    assert stored_revision_name(resolved(**SPLIT)) == "demo-8vpdjf"
    assert stored_revision_name(resolved(**UNIFIED)) == "demo-2v7729"


def test_an_origin_knows_its_spec() -> None:
    origin = origin_of(stored_data(resolved(**SPLIT)))
    assert origin is not None
    assert origin.is_of(resolved(**SPLIT, replicas=7).spec)
    assert not origin.is_of(resolved(**UNIFIED).spec)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"spec": {}},
        {"pinned": {}, "spec": {}},
        {"pinned": [], "spec": {}},
        {"pinned": {"templateVersion": "v1", "frontendImage": "", "workerImage": "w"}, "spec": {}},
        {"pinned": {"templateVersion": 1, "frontendImage": "f", "workerImage": "w"}, "spec": {}},
    ],
    ids=str,
)
def test_what_is_no_stored_revision_is_none(data: dict[str, Any]) -> None:
    assert origin_of(data) is None


def test_fields_of_a_later_release_are_not_guessed() -> None:
    data = stored_data(resolved())
    data["spec"]["fromTheFuture"] = {"a": 1}
    origin = origin_of(data)
    assert origin is not None
    assert origin.typed_spec() is None
    assert origin.pinned.template_version == "v1"
