from typing import Any

from mizzen_operator.cluster.field_ownership import as_applied


def entry(manager: str, operation: str, *names: str, **rest: Any) -> dict[str, Any]:
    tree = {"f:spec": {f"f:{name}": {} for name in names}}
    return {"manager": manager, "operation": operation, "fieldsV1": tree, **rest}


def test_a_creation_counts_as_applied() -> None:
    stranger = entry("kubectl", "Update", "b")
    found = as_applied([entry("me", "Update", "a"), stranger], manager="me")
    assert found == [stranger, entry("me", "Apply", "a")]


def test_two_entries_of_ours_become_one() -> None:
    found = as_applied([entry("me", "Apply", "b"), entry("me", "Update", "a")], manager="me")
    assert found == [entry("me", "Apply", "b", "a")]


def test_nothing_to_do_is_none() -> None:
    assert as_applied([], manager="me") is None
    ours, stranger = entry("me", "Apply", "a"), entry("kubectl", "Update", "b")
    assert as_applied([ours, stranger], manager="me") is None
    status = entry("kubelet", "Update", "c", subresource="status")
    assert as_applied([ours, status], manager="me", with_others=True) is None


def test_with_others_all_of_the_main_resource_is_ours() -> None:
    status = entry("kubelet", "Update", "c", subresource="status")
    found = as_applied(
        [entry("me", "Apply", "a"), entry("kubectl", "Update", "b"), status],
        manager="me",
        with_others=True,
    )
    assert found == [status, entry("me", "Apply", "a", "b")]
