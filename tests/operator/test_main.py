"""The operator's process: what it sets before it starts."""

import json
import sys

import pytest

from mizzen_operator.main import DEEPEST_JSON, operator_verb


def test_one_object_of_great_depth_does_not_end_the_watch_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"{'[' * DEEPEST_JSON}{']' * DEEPEST_JSON}"
    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        json.loads(text)
    monkeypatch.setenv("MIZZEN_OPERATOR_HTTP_PORT", "none")
    try:
        assert operator_verb([]) == 2
        assert isinstance(json.loads(text), list)
    finally:
        sys.setrecursionlimit(limit)
