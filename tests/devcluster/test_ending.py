"""Tests of what is said about a cluster that is, is not, or is somebody else's; none is started."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devcluster import cli, cluster
from tests.devcluster.demo_target import foreign_start
from tests.devcluster.folders import REPOSITORY, CellFolder, Lock, user_folders


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellFolder:
    """Give a cell of a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = user_folders().cell("demo")
    found.path.mkdir(parents=True)
    return found


@pytest.fixture
def held(folder: CellFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[CellFolder]:
    """Hold a cell as its keeper does; being asked to end, it ends."""
    lock = Lock.try_take(folder.lock)
    assert lock is not None

    def end(_: CellFolder) -> bool:
        lock.release()
        return True

    monkeypatch.setattr(cluster, "_ask_to_stop", end)
    monkeypatch.setattr(cluster.keeper, "tidy", lambda _: None)
    yield folder
    cluster.stop_cell(folder)


def test_ending_says_what_was_ended(held: CellFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for said in ("demo: ended\n", "demo: was not running\n"):
        assert cli.main(["down"]) == 0
        assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("place", "is_told"), [("/elsewhere", True), (str(REPOSITORY), False), ("", False)]
)
def test_a_cluster_of_another_checkout_is_told(
    held: CellFolder, place: str, *, is_told: bool
) -> None:
    held.record.write_text(json.dumps({"pid": 1, **({"repository": place} if place else {})}))
    note = foreign_start(held)
    assert note.startswith(f"note: the running cluster was started from {place};") is is_told
    assert bool(note) is is_told


def test_no_cluster_is_of_no_other_checkout(folder: CellFolder) -> None:
    assert foreign_start(folder) == ""
