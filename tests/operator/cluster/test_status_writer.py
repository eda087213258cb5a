from mizzen_operator.cluster.failures import Refusal, UnfitObjectError, error_of
from mizzen_operator.cluster.status_writer import additions
from mizzen_operator.errors import UnavailableError


def test_only_lists_that_hold_more_are_replaced() -> None:
    applied = {"groups": [], "conditions": [{"type": "Ready"}], "url": "a"}
    assert additions({"conditions": [{"type": "Ready"}], "url": "b", "x": [1]}, applied) == {}
    live = {"groups": [{"name": "told"}], "conditions": [{"type": "Told"}, {"type": "Ready"}]}
    assert additions(live, applied) == {"groups": None, "conditions": [{"type": "Ready"}]}


def test_an_object_that_does_not_fit_its_definition_is_told_apart_from_other_failures() -> None:
    said = (
        "failed to create typed live object (a/b; serving.mizzen.dev/v1alpha1, "
        "Kind=InferenceService): .spec.tokenizer.replicas: expected numeric, got string"
    )
    errors = [
        error_of(
            Refusal(status=500, reason="InternalError", message=message, retry_after_s=None),
            call="patch",
        )
        for message in (said, "etcdserver: request timed out")
    ]
    assert [type(error) for error in errors] == [UnfitObjectError, UnavailableError]
