"""Each template version that a service may be pinned to can be rendered, or is refused in words."""

from tests.operator.documents import resolved

from mizzen_operator.render.templates import TEMPLATES, template_of, template_problems
from mizzen_operator.spec.resolve import TEMPLATE_VERSION, Pinned


def test_new_services_begin_with_a_known_version() -> None:
    assert template_problems(resolved()) == []
    assert template_of(resolved()) is TEMPLATES[TEMPLATE_VERSION]


def test_versions_that_were_released_stay() -> None:
    assert set(TEMPLATES) >= {"v1"}


def test_a_version_of_a_later_release_is_refused_with_the_remedy() -> None:
    later = Pinned(template_version="v9", frontend_image="f", worker_image="w")
    (problem,) = template_problems(resolved(pinned=later))
    assert problem.sentence() == (
        "spec.updatePolicy: the service is pinned to template version v9, which this release of "
        "the operator does not know (found Pinned); upgrade the operator again, or set Follow, "
        "which rolls the service"
    )
    assert template_problems(resolved(pinned=later, updatePolicy="Follow")) == []
