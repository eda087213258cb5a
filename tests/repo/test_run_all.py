"""The summary of the checks names what failed."""

from tests.run_all import failed_tests


def test_the_lines_that_name_failures_are_found_past_the_tracebacks() -> None:
    log = (
        "..F\n=== FAILURES ===\nE   assert 1 == 2\n    FAILED in a docstring\n"
        "FAILED tests/a.py::test_b - assert 1 == 2\nERROR tests/c.py::test_d\n1 failed in 2s\n"
    )
    assert failed_tests(log) == [
        "FAILED tests/a.py::test_b - assert 1 == 2",
        "ERROR tests/c.py::test_d",
    ]
