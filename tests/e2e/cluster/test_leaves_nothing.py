"""The local cluster leaves nothing behind: after a stop, after SIGKILL, in the middle of anything.

Every test has a cache folder of its own, so that the image stores of others are never at risk.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devcluster.archive import write_image
from tests.devcluster.cluster import Cluster, ClusterBusyError, is_running
from tests.devcluster.config import ClusterConfig
from tests.devcluster.folders import REPOSITORY, user_folders
from tests.devcluster.progress import Event
from tests.e2e.cluster.machine import network_state, sysctls, traces
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "killme"
SEED = 20261129


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder with the programs that are built already; nothing of it lives on."""
    if os.geteuid() != 0:
        pytest.skip("missing: root")
    (tmp_path / "mizzen").mkdir()
    binaries = user_folders().binaries
    binaries.mkdir(parents=True, exist_ok=True)
    (tmp_path / "mizzen" / "bin").symlink_to(binaries)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    run("down")
    assert traces(NAME, tmp_path) == []


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.devcluster", arguments[0], "--name", NAME, *arguments[1:]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def spawn(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*arguments),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def processes_are_gone(cache: Path) -> bool:
    return not any(trace.startswith("process") for trace in traces(NAME, cache))


def test_the_machine_is_the_same_before_during_and_after(cache: Path) -> None:
    before, before_sysctls = network_state(), sysctls()
    with Cluster.start(ClusterConfig(name=NAME)) as cluster:
        assert network_state() == before
        during = sysctls()
        assert {name: during.get(name) for name in before_sysctls} == before_sysctls
        assert cluster.kubectl("get", "nodes").count("Ready") == 1
    assert network_state() == before
    after = sysctls()
    assert {name: after.get(name) for name in before_sysctls} == before_sysctls
    assert traces(NAME, cache) == []


@pytest.mark.parametrize("turn", range(4))
def test_killed_while_it_starts(cache: Path, turn: int) -> None:
    """The starter dies by SIGKILL at a random moment: all ends by itself, and a start works."""
    chance = random.Random(f"{SEED}-{turn}")
    starter = spawn("up", "--foreground")
    time.sleep(chance.uniform(0.1, 9.0))
    starter.kill()
    starter.wait()
    wait_for(
        "the keeper cleans up after its starter", lambda: traces(NAME, cache) == [], timeout_s=30
    )


@pytest.mark.parametrize("turn", range(3))
def test_keeper_killed_while_it_starts(cache: Path, turn: int) -> None:
    """The keeper itself dies: the kernel ends the cell, `down` (or a start) sweeps the rest."""
    chance = random.Random(f"{SEED}-keeper-{turn}")
    starter = spawn("up")
    lock = user_folders().cell(NAME).lock
    wait_for(
        "the keeper has its lock", lambda: lock.exists() and lock.read_text() != "", timeout_s=30
    )
    time.sleep(chance.uniform(0.0, 8.0))
    os.kill(int(lock.read_text()), signal.SIGKILL)
    starter.wait()
    wait_for("the kernel ends the cell", lambda: processes_are_gone(cache), timeout_s=30)
    assert run("down").returncode == 0
    assert traces(NAME, cache) == []


def test_killed_while_it_runs_and_stops_then_started_again(cache: Path) -> None:
    cluster = Cluster.start(ClusterConfig(name=NAME))
    os.kill(cluster.pid, signal.SIGKILL)
    wait_for("the keeper cleans up after the cell", lambda: traces(NAME, cache) == [], timeout_s=30)

    again = Cluster.start(ClusterConfig(name=NAME))
    with pytest.raises(ClusterBusyError, match="runs already"):
        Cluster.start(ClusterConfig(name=NAME))
    stopper = spawn("down")
    time.sleep(0.3)
    os.kill(again.keeper_pid, signal.SIGKILL)
    stopper.wait()
    wait_for("the kernel ends the cell", lambda: processes_are_gone(cache), timeout_s=30)

    with Cluster.start(ClusterConfig(name=NAME)) as third:
        assert third.kubectl("get", "nodes").count("Ready") == 1


def test_killed_while_an_image_comes_in(cache: Path) -> None:
    """The store survives, and the same import works in the next cell."""
    archive = cache / "big.tar"
    content = os.urandom(200_000_000)
    write_image(archive, name="localhost/big:1", files={"big": content}, entrypoint=("/big",))
    cluster = Cluster.start(ClusterConfig(name=NAME))
    importer = spawn("import", str(archive))
    blobs = cluster.node_store("node0") / "io.containerd.content.v1.content"
    wait_for("the import has begun", lambda: any(blobs.glob("ingest/*")), timeout_s=30)
    os.kill(cluster.keeper_pid, signal.SIGKILL)
    assert importer.wait() != 0
    wait_for("the kernel ends the cell", lambda: processes_are_gone(cache), timeout_s=30)

    with Cluster.start(ClusterConfig(name=NAME)) as again:
        assert again.import_image(archive) is True
        assert again.import_image(archive) is False


def test_a_damaged_store_is_made_anew(cache: Path) -> None:
    store = cache / "mizzen" / "stores" / "0"
    metadata = store / "io.containerd.metadata.v1.bolt" / "meta.db"
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"this is no data base" * 1000)
    said: list[tuple[str, str]] = []

    def keep(event: Event) -> None:
        said.append((event.kind, event.text))

    with Cluster.start(ClusterConfig(name=NAME), show_event=keep) as cluster:
        assert cluster.kubectl("get", "nodes").count("Ready") == 1
    assert any(kind == "note" and "its image store was damaged" in text for kind, text in said)


def test_a_component_that_dies_is_named_with_its_log(cache: Path) -> None:
    cluster = Cluster.start(ClusterConfig(name=NAME))
    scheduler = subprocess.check_output(
        cluster.inside_command("pgrep", "-x", "kube-scheduler"), text=True
    )
    subprocess.check_call(cluster.inside_command("kill", "-9", scheduler.strip()))
    folder = user_folders().cell(NAME)
    wait_for("the cell ends", lambda: not is_running(folder), timeout_s=30)
    reason = json.loads(folder.failure.read_text())["reason"]
    assert reason.startswith("kube-scheduler was killed by SIGKILL; the end of ")
    status = run("status")
    assert status.returncode == 1
    assert "kube-scheduler was killed" in status.stdout
