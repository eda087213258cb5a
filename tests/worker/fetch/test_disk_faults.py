"""What a file system may refuse, and two processes at once."""

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.fetch.hub_server import Hub, hub_with
from tests.worker.fetch.small_model import Fetcher, read_folder

from mizzen_worker.fetch import pull

SOURCE = "hf://org/tiny"


@pytest.fixture
def hub(files: dict[str, bytes], fetcher: Fetcher) -> Iterator[Hub]:
    with hub_with(files) as found:
        fetcher.environment["HF_ENDPOINT"] = found.api.url
        yield found


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (errno.ENOSPC, (1, "NoSpace")),
        (errno.EDQUOT, (1, "NoSpace")),
        (errno.EACCES, (1, "InvalidSource")),
        (errno.EIO, (75, "Unreachable")),
    ],
)
def test_a_write_that_fails(
    hub: Hub,
    fetcher: Fetcher,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    end: tuple[int, str],
) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        patch.setattr(os, "pwrite", fail)
        outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == end
    assert os.strerror(number) in outcome.message
    assert fetcher.fetch(SOURCE).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_what_cannot_fit_is_told_before_it_comes(
    hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "free_bytes", lambda _: pull.SPARE_BYTES + 1000)
    outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (1, "NoSpace")
    assert f"has {pull.SPARE_BYTES + 1000} bytes free" in outcome.message
    assert not hub.content.requests


def test_a_folder_below_a_file_is_refused(hub: Hub, fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    outcome = fetcher.run("--to", str(tmp_path / "file" / "models"), SOURCE)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "may write" in outcome.message


def test_one_process_at_a_time(hub: Hub, fetcher: Fetcher) -> None:
    lock = fetcher.folder / ".partial" / ".tiny.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = fetcher.fetch(SOURCE)
    assert (outcome.status, outcome.reason) == (75, "Unreachable")
    assert "another process" in outcome.message
    assert fetcher.fetch(SOURCE).status == 0
