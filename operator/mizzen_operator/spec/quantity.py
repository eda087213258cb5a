"""Owns reading Kubernetes quantities exactly.

Does not own which fields are quantities.
"""

import re
from decimal import Decimal

from mizzen_operator.spec.fields import QUANTITY_PATTERN

_PATTERN = re.compile(QUANTITY_PATTERN)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity_value(text: str) -> Decimal:
    """The number that a quantity means, exact; the text must match the schema's pattern."""
    value = quantity_of(text)
    assert value is not None, f"not a quantity: {text}"
    return value


def quantity_of(text: str) -> Decimal | None:
    """The number that a text means as a quantity, exact; None if it is none."""
    match = _PATTERN.match(text)
    if match is None:
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:])) if suffix else number
