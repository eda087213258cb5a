"""Times and tables as people read them."""

from datetime import timedelta

import pytest

from mizzen_operator.report.wording import age, shortened, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (64, "1m 4s"), (600, "10m"),
        (3660, "1h 1m"),
        (11 * 3600 + 60, "11h"), (86_400, "1d"), (90_000, "1d 1h"), (20 * 86_400, "20d"),
    ],
)  # fmt: skip
def test_a_length_of_time_is_short(seconds: float, text: str) -> None:
    assert age(timedelta(seconds=seconds)) == text


def test_long_texts_are_cut_to_one_line() -> None:
    assert shortened("a\n  b") == "a b"
    assert shortened("x" * 30, 10) == "xxxxxxx..."


def test_columns_are_aligned_and_lines_do_not_end_in_blanks() -> None:
    assert table([("a", "bb", "c"), ("aaa", "b", "")], "  ") == ["  a    bb  c", "  aaa  b"]
    assert table([]) == []
