"""Owns the control groups of a cell, on cgroup v1 and v2: made before it starts, swept after it.

    /mizzen-<key>/cell           the cell's own processes
    /mizzen-<key>/<node>-agents  a node's containerd, shims and kubelet
    /mizzen-<key>/<node>         below it the kubelet keeps its pods

Every process of a cell is in one of them in the tracking hierarchy, so `is it all gone?` is
answered by the kernel. Not here: limits of pods (the kubelet's).
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "mizzen-"


class CgroupError(RuntimeError):
    """Processes of an old cell would not go away."""


def is_unified(root: Path = _ROOT) -> bool:
    """Tell whether the machine has cgroup v2 only."""
    return (root / "cgroup.controllers").exists()


def hierarchies(root: Path = _ROOT) -> list[Path]:
    """Return where each hierarchy is mounted; links such as cpu -> cpu,cpuacct count once."""
    if is_unified(root):
        return [root]
    return sorted(
        path
        for path in root.iterdir()
        if not path.is_symlink() and (path / "cgroup.procs").exists()
    )


def tracking(root: Path = _ROOT) -> Path:
    """Return the hierarchy that every process of a cell is put into."""
    mounted = hierarchies(root)
    return root / "pids" if root / "pids" in mounted else mounted[0]


def group(cell: str, *parts: str) -> str:
    """Return the name of a cell's group, as the kubelet writes it."""
    return "/".join(("", _PREFIX + cell, *parts))


def create(cell: str, node_names: Sequence[str]) -> None:
    """Make a cell's groups in every hierarchy."""
    for hierarchy in hierarchies():
        base = hierarchy / (_PREFIX + cell)
        base.mkdir(exist_ok=True)
        if is_unified():
            _delegate(hierarchy)
            _delegate(base)
        for name in node_names:
            (base / name).mkdir(exist_ok=True)
    own = tracking() / (_PREFIX + cell)
    for leaf in ("cell", *(f"{name}-agents" for name in node_names)):
        (own / leaf).mkdir(exist_ok=True)


def _delegate(folder: Path) -> None:
    controllers = (folder / "cgroup.controllers").read_text().split()
    for controller in controllers:
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def enter(name: str) -> None:
    """Move the calling process into a group of the tracking hierarchy."""
    (tracking() / name.lstrip("/") / "cgroup.procs").write_text("0")


def pids_below(folder: Path) -> Iterator[int]:
    """Yield the processes of a group and of those below it, as numbered here."""
    for path, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                members = Path(path, "cgroup.procs").read_text().split()
            except OSError:  # removed while we looked
                continue
            yield from (int(pid) for pid in members if pid != "0")


def kill_all(name: str, *, timeout_s: float = 10.0) -> None:
    """Kill every process of a group and wait until none is left.

    Raises CgroupError when some survive.
    """
    folder = tracking() / name.lstrip("/")
    deadline = time.monotonic() + timeout_s
    while pids := set(pids_below(folder)):
        if time.monotonic() > deadline:
            raise CgroupError(f"processes {sorted(pids)} of {name} do not end: end them by hand")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def sweep(cell: str) -> None:
    """Kill what is left of a cell and remove its groups; nothing happens when there is nothing."""
    kill_all(group(cell))
    deadline = time.monotonic() + 5.0
    for hierarchy in hierarchies():
        base = hierarchy / (_PREFIX + cell)
        while base.exists() and not _remove_tree(base):
            if time.monotonic() > deadline:
                raise CgroupError(f"{base} is in use: end what runs there")
            time.sleep(0.02)


def _remove_tree(base: Path) -> bool:
    """Remove a group and those below it; tell whether all are gone."""
    for path, _, _ in os.walk(base, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:  # a process or a group in it is just leaving
            continue
    return not base.exists()
