"""Every verb of the command ``mizzen`` exists in its package and explains itself in one line."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mizzen_worker.cli import GROUP, OWN_VERBS, summary

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
VERBS: dict[str, str] = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"][
    "entry-points"
][GROUP]


@pytest.mark.parametrize("name", VERBS)
def test_the_function_exists_and_its_first_line_is_its_help(name: str) -> None:
    entry = EntryPoint(name=name, value=VERBS[name], group=GROUP)
    assert callable(entry.load())
    assert 10 < len(summary(entry)) < 90


def test_the_verbs_that_work_without_installing_are_registered_too() -> None:
    assert OWN_VERBS.items() <= VERBS.items()


def test_both_packages_have_verbs() -> None:
    packages = {value.partition(".")[0] for value in VERBS.values()}
    assert packages == {"mizzen_operator", "mizzen_worker"}
