"""Defaults of the operator are pinned to a service unless it asks to follow."""

from tests.operator.documents import DEFAULTS, resolved

from mizzen_operator.spec.resolve import Pinned

OLD = Pinned(template_version="v1", frontend_image="front:old", worker_image="worker:old")


def test_row_2_an_upgraded_operator_keeps_the_images_a_service_started_with() -> None:
    service = resolved(pinned=OLD, topology="Split")
    assert (service.frontend_image, service.worker_image) == ("front:old", "worker:old")
    assert service.pinned == OLD


def test_follow_takes_the_new_defaults_and_pins_them() -> None:
    service = resolved(pinned=OLD, updatePolicy="Follow")
    assert service.worker_image == DEFAULTS.worker_image
    assert service.pinned.worker_image == DEFAULTS.worker_image


def test_an_image_of_the_spec_wins() -> None:
    assert resolved(pinned=OLD, engine={"images": {"worker": "mine:1"}}).worker_image == "mine:1"


def test_stopped_wants_no_groups() -> None:
    assert resolved(replicas=3, stopped=True).groups == 0
    assert resolved(replicas=3).groups == 3
