"""Owns where the local cluster keeps things on disk; nothing else spells these paths.

It does not create or delete anything except lock files.

    <cache>/mizzen/bin/<hash>/        built programs                     binaries.py
    <cache>/mizzen/published/         definitions of other projects     published.py
    <cache>/mizzen/stores/<k>/        a node's images, kept over cells   stores.py
    <cache>/mizzen/cells/<name>.lock  held while the cell's keeper lives keeper.py
    <cache>/mizzen/cells/<name>/      everything of one cell, wiped when the next one starts
"""

import fcntl
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFolder:
    """The files of one cell."""

    path: Path

    @property
    def key(self) -> str:
        """Name this cell on the whole machine: another user may have one of the same name."""
        place = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()
        return f"{self.path.name}-{place[:8]}"

    @property
    def lock(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    @property
    def plan(self) -> Path:
        """What the keeper tells the cell's first process: see plan.py."""
        return self.path / "plan.json"

    @property
    def record(self) -> Path:
        """What a running keeper tells everybody else: see keeper.py."""
        return self.path / "keeper.json"

    @property
    def failure(self) -> Path:
        """Why the cell ended, if it was not asked to."""
        return self.path / "failure.json"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def files(self) -> Path:
        """Configuration files of the components."""
        return self.path / "files"

    @property
    def kubeconfig(self) -> Path:
        """For programs outside the cell."""
        return self.path / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def keeper_socket(self) -> Path:
        return self.path / "keeper.sock"

    @property
    def cell_socket(self) -> Path:
        return self.path / "cell.sock"

    def node(self, name: str) -> Path:
        """Return where the files of a node's kubelet lie: pods, volumes, container logs."""
        return self.path / "nodes" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The cache folder and what lies in it."""

    root: Path

    @property
    def binaries(self) -> Path:
        return self.root / "bin"

    @property
    def go(self) -> Path:
        """Go's own caches and, where needed, a Go toolchain: expendable."""
        return self.root / "go"

    @property
    def published(self) -> Path:
        return self.root / "published"

    @property
    def stores(self) -> Path:
        return self.root / "stores"

    @property
    def cells(self) -> Path:
        return self.root / "cells"

    def cell(self, name: str) -> CellFolder:
        return CellFolder(path=self.cells / name)


def user_folders() -> Folders:
    """Return the folders of the user who runs this: below XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Folders(root=Path(cache) / "mizzen")


class Lock:
    """An advisory lock on a file, held until release() or the end of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def try_take(cls, path: Path, *, note: str = "") -> "Lock | None":
        """Take the lock, or return None when somebody else has it; the note is left in the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, note.encode())
        return cls(descriptor)

    @classmethod
    def take(cls, path: Path, *, before_waiting: Callable[[], object] = lambda: None) -> "Lock":
        """Take the lock, waiting for whoever has it."""
        lock = cls.try_take(path)
        if lock is not None:
            return lock
        before_waiting()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return cls(descriptor)

    def release(self) -> None:
        os.close(self._descriptor)
