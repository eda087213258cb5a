"""A claim that not all pods can mount is refused with its modes."""

import pytest
from tests.operator.documents import resolved

from mizzen_operator.errors import CLAIM_NOT_SHAREABLE
from mizzen_operator.spec.validate import validate_claim


@pytest.mark.parametrize("mode", ["ReadOnlyMany", "ReadWriteMany"])
def test_a_shared_claim_is_accepted(mode: str) -> None:
    assert validate_claim(resolved(topology="Split"), ["ReadWriteOnce", mode]) == []


def test_row_58_a_claim_of_one_node_is_refused_for_several_pods() -> None:
    (problem,) = validate_claim(resolved(topology="Split"), ["ReadWriteOnce"])
    assert problem.reason == CLAIM_NOT_SHAREABLE
    assert problem.field == "spec.model.source.pvc.claimName"
    assert "ReadWriteOnce" in problem.sentence()
    assert validate_claim(resolved(replicas=2), ["ReadWriteOnce"])


def test_one_pod_may_have_any_claim() -> None:
    assert validate_claim(resolved(), ["ReadWriteOnce"]) == []


def test_an_unknown_claim_is_not_judged() -> None:
    assert validate_claim(resolved(topology="Split"), None) == []
