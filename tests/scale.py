"""Owns how long random tests look: a short search for each edit, the full one for `make test`.

It also names cases of other tests that are left to `make test` (``slow_case``).

One switch for all: ``MIZZEN_TEST_SCALE`` is ``check`` (the default) or ``full``; tests/run_all.py
sets it. Hypothesis gets a profile of that name; other random tests ask ``count``.
"""

import os

import pytest

SCALES = ("check", "full")


def scale() -> str:
    """Read the switch; a wrong value is an error, not the default."""
    value = os.environ.get("MIZZEN_TEST_SCALE", "check")
    if value not in SCALES:
        raise ValueError(f"MIZZEN_TEST_SCALE: {value!r}; use {' or '.join(SCALES)}")
    return value


def count(*, check: int, full: int) -> int:
    """Choose how many examples, workloads or operations a random test does."""
    return full if scale() == "full" else check


def slow_case(*values: object):
    """A case of a parametrised test that the quick run leaves to ``make test``."""
    return pytest.param(*values, marks=pytest.mark.slow)
