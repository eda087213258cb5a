"""Values are shown to people as they would say them."""

from typing import Any

import pytest

from mizzen_operator.spec.wording import MAX_VALUE_TEXT, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("1Gi", "1Gi"),
        (True, "true"),
        (2, "2"),
        ({}, "{}"),
        ([], "[]"),
        (["--model", "x"], "--model, x"),
        ({"limits": {"memory": "1Gi", "cpu": 2}}, "limits.memory: 1Gi, limits.cpu: 2"),
    ],
)
def test_values_in_plain_words(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 500)) == MAX_VALUE_TEXT
