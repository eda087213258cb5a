"""Owns the fixtures of cluster tests: one cluster per session, one namespace per test.

On failure everything known about the cluster is kept in a folder under out/, named at the end.
Not here: what a cluster is (cluster.py).
"""

import hashlib
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.devcluster.archive import write_image
from tests.devcluster.binaries import probe_program
from tests.devcluster.cluster import Cluster, ClusterBusyError
from tests.devcluster.config import ClusterConfig
from tests.devcluster.folders import REPOSITORY, user_folders
from tests.devcluster.requirements import RequirementError

PROBE_IMAGE = "localhost/mizzen-probe:1"
SESSION_NODES = 2

_failed = pytest.StashKey[bool]()
_dumps = pytest.StashKey[list[Path]]()


def start_session_cluster() -> Cluster:
    """Start the cluster of a test session; sessions side by side get names of their own."""
    for name in ("test", "test-2", "test-3", "test-4"):
        try:
            return Cluster.start(ClusterConfig(name=name, nodes=SESSION_NODES))
        except ClusterBusyError:
            continue
    raise ClusterBusyError("four test clusters run already: end them first")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster of two nodes for the whole session."""
    try:
        started = start_session_cluster()
    except RequirementError as error:
        pytest.skip(f"missing: {error}")
    with started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test alone; its removal afterwards is started, not awaited."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    # Long names of parametrised tests differ only after the cut.
    name = f"{words}-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:6]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    if request.node.stash.get(_failed, False):
        folder = REPOSITORY / "out" / "failures" / name
        cluster.dump(folder)
        request.config.stash.setdefault(_dumps, []).append(folder)
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a tiny image: an HTTP server that says what it can reach."""
    path = tmp_path_factory.mktemp("images") / "probe.tar"
    program = probe_program(user_folders(), lambda _fraction, _text: None).read_bytes()
    write_image(path, name=PROBE_IMAGE, files={"probe": program}, entrypoint=("/probe",))
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember on the test that it failed, for the fixtures that end after it."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the folders with what is known about failed tests."""
    for folder in config.stash.get(_dumps, []):
        terminalreporter.write_line(f"cluster logs, events and objects: {folder}")
