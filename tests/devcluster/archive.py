"""Owns OCI image archives: reading what one holds, writing tiny ones from a few files.

Both forms are understood: a folder in the OCI layout and a tar file of one. Not here: how an
archive gets into a node (image_import.py).
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"


class ArchiveError(ValueError):
    """A file is no image archive that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file of an archive: its path in it, its size."""

    path: str
    size_bytes: int

    @property
    def digest(self) -> str | None:
        """The content's digest when it is a blob."""
        parts = self.path.split("/")
        return f"{parts[1]}:{parts[2]}" if len(parts) == 3 and parts[0] == "blobs" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that an archive holds: its name and its manifest's digest."""

    name: str
    digest: str


class Archive:
    """An image archive on disk; read only, opened anew for each question."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ArchiveError(f"{path}: no such image archive")
        self.path = path

    def members(self) -> list[Member]:
        """Return every file in it."""
        if self.path.is_dir():
            return [
                Member(path=str(file.relative_to(self.path)), size_bytes=file.stat().st_size)
                for file in sorted(self.path.rglob("*"))
                if file.is_file()
            ]
        with tarfile.open(self.path) as tar:
            return [
                Member(path=info.name.removeprefix("./"), size_bytes=info.size)
                for info in tar
                if info.isfile()
            ]

    def read(self, wanted: str) -> bytes:
        """Return the content of one file in it."""
        for member, content in self.contents():
            if member.path == wanted:
                return content.read()
        raise ArchiveError(f"{self.path}: it has no {wanted}, so it is no OCI image archive")

    def contents(self) -> Iterator[tuple[Member, IO[bytes]]]:
        """Yield every file and its content, which is valid until the next one is asked for."""
        if self.path.is_dir():
            for member in self.members():
                with (self.path / member.path).open("rb") as content:
                    yield member, content
            return
        with tarfile.open(self.path) as tar:
            for info in tar:
                inner = tar.extractfile(info) if info.isfile() else None
                if inner is not None:
                    path = info.name.removeprefix("./")
                    yield Member(path=path, size_bytes=info.size), inner

    def images(self) -> list[Image]:
        """Return the images that it names; raises ArchiveError when it names none."""
        index = json.loads(self.read("index.json"))
        images = []
        for manifest in index.get("manifests", ()):
            annotations = manifest.get("annotations", {})
            name = annotations.get(_CONTAINERD_NAME) or annotations.get(_NAME)
            if name is not None:
                images.append(Image(name=name, digest=manifest["digest"]))
        if not images:
            raise ArchiveError(f"{self.path}: its image has no name: write it with a name")
        return images


def write_image(
    path: Path, *, name: str, files: Mapping[str, bytes], entrypoint: tuple[str, ...]
) -> None:
    """Write an archive of an image of one layer, made from nothing but these files."""
    layer = pack({file: (content, 0o755) for file, content in files.items()})
    blobs: dict[str, tuple[bytes, int]] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (content, 0o644)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    prefix = "application/vnd.oci.image"
    layer_blob = blob(layer, f"{prefix}.layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{prefix}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{prefix}.config.v1+json"),
        "layers": [layer_blob],
    }
    named = blob(json.dumps(manifest).encode(), f"{prefix}.manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**named, "annotations": {_NAME: name}}]}
    layout = {"imageLayoutVersion": "1.0.0"}
    path.write_bytes(
        pack(
            {
                "oci-layout": (json.dumps(layout).encode(), 0o644),
                "index.json": (json.dumps(index).encode(), 0o644),
                **blobs,
            }
        )
    )


def pack(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return a tar of files, each with its mode, that is the same for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
