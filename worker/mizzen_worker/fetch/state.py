"""Owns what is kept of a fetch that is not done: its listing, and which files are whole.

The first listing stays for all attempts, so that a branch that moves cannot mix two commits. The
journal spares hashing again what is whole; a torn last line is a file that is hashed again.
"""

import shutil
from pathlib import Path
from threading import Lock

import msgspec

from mizzen_worker.contracts.fetch import STATE_FOLDER
from mizzen_worker.fetch.disk import write_whole
from mizzen_worker.fetch.listing import PART_SUFFIX, Listing, RemoteFile
from mizzen_worker.fetch.manifest import ManifestFile
from mizzen_worker.fetch.source import Source, is_held

_PLAN, _JOURNAL = "plan.json", "journal.jsonl"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is fetched; another source or other patterns make what is there useless."""

    source: str
    allow: tuple[str, ...]
    listing: Listing


class FetchState:
    """In the folder that is being filled. ``note_whole`` is thread safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place = folder / STATE_FOLDER
        self._lock = Lock()

    def open(self, source: Source, allow: tuple[str, ...]) -> Listing | None:
        """The listing to go on with, None where there is none; drops what is of another source."""
        plan = self._read_plan()
        is_same = plan is not None and plan.allow == allow
        if plan and is_same and is_held(source, plan.source, plan.listing.revision):
            return plan.listing
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._place.mkdir(parents=True)
        return None

    def keep(self, source: str, allow: tuple[str, ...], listing: Listing) -> None:
        """Go on with a new listing; drops what is here of files that are others now."""
        plan = self._read_plan()
        if plan is not None:
            for file in set(plan.listing.downloads) - set(listing.downloads):
                self._drop(file)
        content = msgspec.json.encode(Plan(source=source, allow=allow, listing=listing))
        write_whole(self._place / _PLAN, content)

    def whole_files(self) -> dict[str, ManifestFile]:
        """Files that are in their places, by path."""
        try:
            lines = (self._place / _JOURNAL).read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        found: dict[str, ManifestFile] = {}
        for line in lines:
            try:
                entry = msgspec.json.decode(line, type=ManifestFile)
            except msgspec.DecodeError:
                continue
            path = self.folder / entry.path
            if path.is_file() and path.stat().st_size == entry.size:
                found[entry.path] = entry
        return found

    def note_whole(self, entry: ManifestFile) -> None:
        """Remember a file that is in its place."""
        with self._lock, (self._place / _JOURNAL).open("ab") as journal:
            # On a line of its own, also behind a torn one.
            journal.write(b"\n" + msgspec.json.encode(entry) + b"\n")

    def reopen(self, file: RemoteFile) -> None:
        """Make a part again of a file that is in its place and of which nothing is noted."""
        path = self.folder / file.path
        if path.is_file():
            path.replace(path.with_name(path.name + PART_SUFFIX))

    def _read_plan(self) -> Plan | None:
        try:
            return msgspec.json.decode((self._place / _PLAN).read_bytes(), type=Plan)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _drop(self, file: RemoteFile) -> None:
        for suffix in ("", PART_SUFFIX, f"{PART_SUFFIX}.state"):
            path = self.folder / file.path
            path.with_name(path.name + suffix).unlink(missing_ok=True)
