"""A launcher's folder goes with it, and after a kill with the next launcher."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.worker.launched import ROOT

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.supervision.socket_folder import socket_folder

_HOLD = """
import sys, time
from pathlib import Path
from mizzen_worker.supervision.socket_folder import socket_folder
with socket_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_it_is_private_and_removed(tmp_path: Path) -> None:
    with socket_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "worker").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_hold_sockets_is_refused_by_name(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with (
        pytest.raises(ConfigError, match=r"TMPDIR: .* is too long for sockets, .* shorter path"),
        socket_folder(long),
    ):
        pass
    assert list(long.iterdir()) == []
    with (
        pytest.raises(ConfigError, match="TMPDIR: no folder for sockets can be made"),
        socket_folder(tmp_path / "absent"),
    ):
        pass


def test_only_what_a_killed_launcher_left_is_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "mizzen-notes"
    foreign.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "worker")},
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with socket_folder(tmp_path):
            assert theirs.exists()
        other.kill()
        other.wait()
        assert theirs.exists()
        with socket_folder(tmp_path) as ours:
            assert sorted(tmp_path.iterdir()) == sorted([foreign, ours])
