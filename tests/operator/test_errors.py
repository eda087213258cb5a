"""What it means that an object is not taken, by the API server's own words."""

import pytest

from mizzen_operator.errors import Objection, objection_of, words_of

ACCOUNT = "system:serviceaccount:mizzen-system:mizzen-operator"


@pytest.mark.parametrize(
    ("said", "objection"),
    [
        (
            f'pods is forbidden: User "{ACCOUNT}" cannot create resource "pods" in API group "" '
            'in the namespace "team"',
            Objection.NO_RIGHT,
        ),
        (
            'statefulsets.apps "a" is forbidden: exceeded quota: q, requested: count/statefulsets'
            ".apps=1, used: count/statefulsets.apps=3, limited: count/statefulsets.apps=3",
            Objection.QUOTA_FULL,
        ),
        (
            'pods "a" is forbidden: status unknown for quota: q, resources: cpu',
            Objection.QUOTA_FULL,
        ),
        (
            'pods "a" is forbidden: failed quota: q: must specify limits.memory for: mizzen',
            Objection.TEMPLATE,
        ),
        (
            'statefulsets.apps "a" is forbidden: unable to create new content in namespace team '
            "because it is being terminated",
            Objection.NO_RIGHT,
        ),
        (
            'admission webhook "a.example" does not support dry run',
            Objection.NOT_ASKABLE,
        ),
        (
            'pods "a" is forbidden: violates PodSecurity "restricted:latest": unrestricted '
            'capabilities (container "mizzen" must set securityContext.capabilities.drop=["ALL"])',
            Objection.TEMPLATE,
        ),
        ('admission webhook "a.example" denied the request: no', Objection.TEMPLATE),
        ("maximum cpu usage per Container is 2, but limit is 4", Objection.TEMPLATE),
    ],
)
def test_the_kind_of_a_refusal(said: str, objection: Objection) -> None:
    assert objection_of(said) is objection


def test_the_name_of_a_pod_is_no_part_of_the_words() -> None:
    said = 'pods "chat-x-8fhs2" is forbidden: exceeded quota: q'
    assert words_of(said) == "exceeded quota: q"
    assert words_of("Internal error occurred: x") == "Internal error occurred: x"
