"""`docs/complaints.md` and the tests agree: what is named for a row is in it, and nothing else."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "complaints.md"
NUM_ROWS = 68
MAX_NOT_SHOWN = 10
ON_API_SERVER = "e2e/"
STATES = ("shown", "in memory", "partly", "not", "later")
_ROW = re.compile(r"\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \| ([^|]*) \|")
_NAMED = re.compile(r"test_rows?_((?:(?:\d+|and)_)*\d+)(?:_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    number: int
    state: str
    remark: str
    on_api_server: tuple[str, ...]
    in_memory: tuple[str, ...]


def _names(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def _rows() -> list[Row]:
    found = []
    for line in DOCUMENT.read_text().splitlines():
        match = _ROW.fullmatch(line)
        if match is None:
            assert not re.match(r"\| \d", line), f"not a row of the table: {line}"
            continue
        number, _, how, on_api_server, in_memory = match.groups()
        state, _, remark = how.partition(": ")
        found.append(
            Row(
                number=int(number),
                state=state,
                remark=remark,
                on_api_server=_names(on_api_server),
                in_memory=_names(in_memory),
            )
        )
    return found


def rows_of(test: str) -> set[int]:
    """Numbers that the name of a test begins with."""
    match = _NAMED.match(test)
    return {int(word) for word in match[1].split("_") if word != "and"} if match else set()


def _tests_by_row() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {number: set() for number in range(1, NUM_ROWS + 1)}
    folder = ROOT / "tests"
    for path in sorted(folder.rglob("test_*.py")):
        for item in ast.parse(path.read_text()).body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in rows_of(item.name):
                    found[number].add(f"{path.relative_to(folder)}::{item.name}")
    return found


@pytest.mark.parametrize(
    ("test", "numbers"),
    [
        ("test_row_7_a_field", {7}),
        ("test_rows_37_38_and_56_a_pod", {37, 38, 56}),
        ("test_row_16_and_17_what", {16, 17}),
        ("test_row_3_and_more", {3}),
        ("test_rows_are_told", set()),
        ("test_a_row_7", set()),
    ],
)
def test_numbers_are_read_from_names(test: str, numbers: set[int]) -> None:
    assert rows_of(test) == numbers


def test_every_row_is_there_once() -> None:
    assert [row.number for row in _rows()] == list(range(1, NUM_ROWS + 1))


def test_tests_named_for_a_row_are_those_in_the_table() -> None:
    wrong = []
    tests = _tests_by_row()
    for row in _rows():
        listed = {*row.on_api_server, *row.in_memory}
        wrong += [f"row {row.number}: add `{name}`" for name in sorted(tests[row.number] - listed)]
        wrong += [f"row {row.number}: no test `{name}`" for name in listed - tests[row.number]]
    assert wrong == []


def test_a_state_is_what_the_tests_show() -> None:
    for row in _rows():
        assert row.state in STATES, row
        assert all(name.startswith(ON_API_SERVER) for name in row.on_api_server), row
        assert not any(name.startswith(ON_API_SERVER) for name in row.in_memory), row
        assert row.state == "shown" or row.remark, f"row {row.number} says no reason"
        if row.state == "shown":
            assert row.on_api_server, row
        if row.state in ("not", "later"):
            assert not row.on_api_server, row
        if row.state == "in memory":
            assert row.in_memory, row
            assert not row.on_api_server, row


def test_few_rows_are_not_shown() -> None:
    assert len([row for row in _rows() if row.state == "not"]) <= MAX_NOT_SHOWN
