"""Owns buildah's store of our images: one private folder, built under a lock, read as plain files.

Not here: what is built (images.py), how a node gets it (images_load.py). Layers lie unpacked in
the store, so that a node can share their files: nothing is ever packed into an archive.

Invariants: everything in the store was made by us, so what an interrupted build left may be removed
at any time by whoever holds the lock; the user's own buildah or podman images are never touched.
"""

import hashlib
import json
import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.devcluster.folders import Lock
from tests.devcluster.steps import DIE_WITH_US, IN_A_CELL

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

_MAX_VERSIONS = 3
"""Of an image, so that working trees side by side do not undo each other's builds."""
_MAX_DEPENDENCY_SETS = 2
_MAX_INTERMEDIATE = 300
"""Steps of builds kept for reuse, a few megabytes per change of the code."""

Say = Callable[[str], None]


class ImageError(RuntimeError):
    """An image cannot be built or read; the message says what failed and where its output is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One unpacked layer: the digest of its uncompressed archive, and its files."""

    diff_id: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the store, lowest layer first."""

    name: str
    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def digest_of(blob: bytes) -> str:
    """Name a blob as registries do."""
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def choose_older(newest_first: Sequence[tuple[str, str | None]]) -> list[str]:
    """Choose which images go: each is a name and the layer that its code lies on."""
    kept: list[str | None] = []
    older: list[str] = []
    for name, below in newest_first:
        is_known = below in kept or len(set(kept)) < _MAX_DEPENDENCY_SETS
        if len(kept) < _MAX_VERSIONS and is_known:
            kept.append(below)
        else:
            older.append(name)
    return older


class ImageStore:
    """buildah with our own storage folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._storage = root / "storage"
        self._scratch = root / "scratch"

    @contextmanager
    def locked(self, say: Say) -> Iterator[None]:
        """Hold the store; what a killed build left behind is removed first."""
        lock = Lock.take(
            self._root / "lock",
            before_waiting=lambda: say("waiting for another build of images to end"),
        )
        try:
            self._configure()
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir(parents=True)
            self._remove_containers()
            yield
            self._remove_containers()
        finally:
            lock.release()

    @property
    def scratch(self) -> Path:
        """A folder for one build, emptied when the next one starts."""
        return self._scratch

    def _configure(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        run = Path("/run/mizzen-images") / hashlib.sha256(bytes(self._root)).hexdigest()[:12]
        (self._root / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self._storage}"\nrunroot = "{run}"\n'
            '[storage.options.overlay]\nmountopt = "nodev"\n'
        )

    def _remove_containers(self) -> None:
        """Unmount and remove what a build works in; even a build that succeeds leaves some."""
        if self._records("containers"):
            self._run(["rm", "--all"], say=lambda _: None)
        for name in self.names():
            if name.endswith("-tmp:latest"):  # a commit that was killed
                self._run(["rmi", name], say=lambda _: None)

    def _records(self, kind: str) -> list[dict[str, Any]]:
        """Read what the store knows: images, layers or containers."""
        file = self._storage / f"overlay-{kind}" / f"{kind}.json"
        records: list[dict[str, Any]] = json.loads(file.read_bytes()) if file.exists() else []
        return records

    def names(self) -> set[str]:
        """Return every tagged image as repository:tag."""
        return {name for image in self._records("images") for name in image.get("names") or ()}

    def has(self, name: str) -> bool:
        return name in self.names()

    def build(self, *, arguments: Sequence[str], context: Path, say: Say) -> None:
        """Build a Dockerfile with layers, without asking any registry."""
        certificates = ["--volume", f"{CA_BUNDLE}:{CA_BUNDLE}:ro"] if CA_BUNDLE.is_file() else []
        self._run(
            [
                *("build", "--layers", "--pull-never", "--isolation", "chroot"),
                *certificates,
                *arguments,
                str(context),
            ],
            say=say,
        )

    def from_folder(self, name: str, folder: Path) -> None:
        """Make an image of one layer out of a folder."""
        container = self._run(["from", "scratch"], say=lambda _: None).strip()
        self._run(["add", "--quiet", container, str(folder), "/"], say=lambda _: None)
        self._run(["commit", "--quiet", "--rm", container, name], say=lambda _: None)

    def remove_older(self, repository: str) -> None:
        """Remove all but the newest images of a repository, with the layers that only they need.

        Versions of the code share their big layers; only two sets of those are kept.
        """
        parents = {layer["id"]: layer.get("parent") for layer in self._records("layers")}
        found = [
            (image["created"], name, parents.get(image["layer"]))
            for image in self._records("images")
            for name in image.get("names") or ()
            if name.rpartition(":")[0] == repository
        ]
        for name in choose_older([(name, below) for _, name, below in sorted(found, reverse=True)]):
            self._run(["rmi", name], say=lambda _: None)

    def trim(self) -> None:
        """Forget the intermediate results of many builds; the next one makes a few of them anew."""
        if len(self._records("images")) > _MAX_INTERMEDIATE:
            self._run(["rmi", "--prune"], say=lambda _: None)

    def read(self, name: str) -> Image:
        """Return an image: its documents byte for byte and where its layers lie.

        Needs no lock: buildah replaces its records as a whole.
        """
        records = self._records("images")
        record = next((image for image in records if name in (image.get("names") or ())), None)
        if record is None:
            raise ImageError(f"{name} is not in the store: run make images")
        documents = self._storage / "overlay-images" / record["id"]
        manifest = (documents / "manifest").read_bytes()
        config_digest = json.loads(manifest)["config"]["digest"]
        config = (documents / f"={b64encode(config_digest.encode()).decode()}").read_bytes()
        layers = self._layers(record["layer"])
        diff_ids = [layer.diff_id for layer in layers]
        if (
            digest_of(config) != config_digest
            or diff_ids != json.loads(config)["rootfs"]["diff_ids"]
        ):
            raise ImageError(f"{name} is damaged in the store: run make clean")
        return Image(name=name, manifest=manifest, config=config, layers=layers)

    def _layers(self, top: str | None) -> tuple[Layer, ...]:
        by_id = {layer["id"]: layer for layer in self._records("layers")}
        found: list[Layer] = []
        while top:
            layer = by_id[top]
            if "diff-digest" in layer:  # a record without one holds no files
                folder = self._storage / "overlay" / top / "diff"
                found.append(Layer(diff_id=layer["diff-digest"], folder=folder))
            top = layer.get("parent")
        return tuple(reversed(found))

    def _run(self, arguments: Sequence[str], *, say: Say) -> str:
        environment = {
            "CONTAINERS_STORAGE_CONF": str(self._root / "storage.conf"),
            "TMPDIR": str(self._scratch),
        }
        return stream(["buildah", *arguments], say=say, environment=environment)


def stream(argv: Sequence[str], *, say: Say, environment: Mapping[str, str] | None = None) -> str:
    """Run a program, pass its lines on and return them all; raises ImageError with the last.

    However it ends, no mount and no process of it is left.
    """
    process = subprocess.Popen(
        [*DIE_WITH_US, *IN_A_CELL, *argv],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: list[str] = []
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            lines.append(line)
            say(line.rstrip())
    if process.returncode != 0:
        tail = "".join(lines[-12:]).strip()
        raise ImageError(f"{argv[0]} failed ({process.returncode}): {tail}")
    return "".join(lines)
