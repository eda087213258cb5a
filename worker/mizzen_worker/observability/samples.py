"""Owns one value of a metric as processes tell it to each other; owns no names and no text."""

import msgspec


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One line of the Prometheus text; a histogram has one for each bucket, the count and the sum.

    ``labels`` are (name, value) in the order of the family.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
