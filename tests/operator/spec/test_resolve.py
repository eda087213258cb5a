"""Defaults of the operator are pinned to a service unless it asks to follow."""

import pytest
from tests.operator.documents import DEFAULTS, resolved

from mizzen_operator.spec.resolve import Pinned, pinned_of

OLD = Pinned(template_version="v1", frontend_image="front:old", worker_image="worker:old")


def test_an_upgraded_operator_keeps_the_images_a_service_started_with() -> None:
    service = resolved(pinned=OLD, topology="Split")
    assert (service.frontend_image, service.worker_image) == ("front:old", "worker:old")
    assert service.pinned == OLD


def test_follow_takes_the_new_defaults_and_pins_them() -> None:
    service = resolved(pinned=OLD, updatePolicy="Follow")
    assert service.worker_image == DEFAULTS.worker_image
    assert service.pinned.worker_image == DEFAULTS.worker_image


def test_an_image_of_the_spec_wins() -> None:
    assert resolved(pinned=OLD, engine={"images": {"worker": "mine:1"}}).worker_image == "mine:1"


def test_a_pin_survives_its_text() -> None:
    assert pinned_of(OLD.as_text()) == OLD


@pytest.mark.parametrize("text", [None, "", "v1", "v1 a", "v1 a b c", "v1  b"])
def test_what_is_no_pin_is_none(text: str | None) -> None:
    assert pinned_of(text) is None


def test_stopped_wants_no_groups() -> None:
    assert resolved(replicas=3, stopped=True).groups == 0
    assert resolved(replicas=3).groups == 3
