"""A pinned service tells what it could follow, and only what would change its pods."""

from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.spec.resolve import Pinned
from mizzen_operator.status.updates import update_available

OLD = Pinned(template_version="v1", frontend_image="front:old", worker_image="worker:old")
BOTH = ("frontend image", "worker image")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"topology": "Split"}, BOTH),
        ({"topology": "Unified"}, BOTH[1:]),
        ({"topology": "Unified", "engine": {"images": {"worker": "mine:1"}}}, ()),
        ({"topology": "Split", "engine": {"images": {"frontend": "mine:1"}}}, BOTH[1:]),
        ({"topology": "Split", "updatePolicy": "Follow"}, ()),
    ],
)
def test_row_2_what_a_pinned_service_could_follow_is_told(
    spec: dict[str, Any], told: tuple[str, ...]
) -> None:
    verdicts = list(update_available(resolved(pinned=OLD, **spec)))
    assert len(verdicts) == bool(told)
    for verdict in verdicts:
        assert verdict.status == "True"
        assert tuple(name for name in BOTH if name in verdict.message) == told


def test_who_has_the_defaults_is_told_nothing() -> None:
    assert list(update_available(resolved(topology="Split"))) == []
