"""Quantities are read exactly."""

from decimal import Decimal

import pytest

from mizzen_operator.spec.quantity import quantity_of, quantity_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        ("500m", "0.5"),
        ("0.1", "0.1"),
        (".5", "0.5"),
        ("100n", "0.0000001"),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("1E", "1e18"),
        ("1Ei", "1152921504606846976"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("5e-1", "0.5"),
    ],
)
def test_value(text: str, value: str) -> None:
    assert quantity_value(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "m", "abc", "nan", "Infinity", "--1"])
def test_other_texts_are_no_quantities(text: str) -> None:
    assert quantity_of(text) is None
