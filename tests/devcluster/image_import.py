"""Owns getting an image archive into a node's store, and no byte of it twice.

Layers that the store has already are left out of the stream, so a changed image moves only its
changed layers. Not here: the archive format (archive.py), which store a node has (stores.py).
"""

import contextlib
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import IO

from tests.devcluster.archive import Archive, Image, Member

Show = Callable[[float, str], None]


class ImageImportError(RuntimeError):
    """A node did not take an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What a node's store holds: digests by image name, and the blobs."""

    image_digests: dict[str, str]
    blobs: frozenset[str]


def is_present(images: Iterable[Image], present: Present) -> bool:
    """Tell whether a node has all of these images, each in exactly this version."""
    return all(present.image_digests.get(image.name) == image.digest for image in images)


def choose_members(members: Iterable[Member], blobs: Collection[str]) -> list[Member]:
    """Return the files that have to be sent to a store that has these blobs."""
    return [member for member in members if member.digest not in blobs]


def import_archive(
    archive: Archive, *, node: str, ctr: Callable[..., list[str]], show: Show
) -> bool:
    """Bring an archive's images into a node; returns False when they were there already.

    ctr gives the command line of the node's client for some arguments.
    """
    images = archive.images()
    present = _look(ctr)
    if is_present(images, present):
        return False
    label = f"importing {', '.join(image.name for image in images)} into {node}"
    refusal = _stream(archive, choose_members(archive.members(), present.blobs), ctr, label, show)
    if not is_present(images, _look(ctr)):
        # A blob that was there may have been collected meanwhile: send everything.
        refusal = _stream(archive, archive.members(), ctr, label, show)
    if not is_present(images, _look(ctr)):
        raise ImageImportError(f"{node} does not take {archive.path}: {refusal}")
    show(1.0, label)
    return True


def _stream(
    archive: Archive,
    members: Collection[Member],
    ctr: Callable[..., list[str]],
    label: str,
    show: Show,
) -> str:
    """Send these files of an archive; return what the client said."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            ctr("images", "import", "-"),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdin is not None
            # A client that refuses stops reading; it says why on its output.
            with contextlib.suppress(BrokenPipeError):
                _send(archive, members, process.stdin, label, show)
        output.seek(0)
        return output.read().decode(errors="replace").strip()[-600:]


def _send(
    archive: Archive, members: Collection[Member], pipe: IO[bytes], label: str, show: Show
) -> None:
    wanted = {member.path for member in members}
    total = sum(member.size_bytes for member in members) or 1
    sent = 0
    with tarfile.open(fileobj=pipe, mode="w|") as tar:
        for member, content in archive.contents():
            if member.path not in wanted:
                continue
            info = tarfile.TarInfo(member.path)
            info.size, info.mode = member.size_bytes, 0o644
            tar.addfile(info, content)
            sent += member.size_bytes
            show(min(sent / total, 0.99), label)


def _look(ctr: Callable[..., list[str]]) -> Present:
    images: dict[str, str] = {}
    for line in _output(ctr("images", "ls")).splitlines()[1:]:
        name, _, digest = line.split()[:3]
        images[name] = digest
    blobs = frozenset(_output(ctr("content", "ls", "-q")).split())
    return Present(image_digests=images, blobs=blobs)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageImportError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
