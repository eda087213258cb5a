"""Owns one file that is being fetched: its bytes so far, their hashes, what they are a part of.

Invariants: ``offset`` bytes are on disk, and the hashes are over exactly them. Where the source
states a hash a part is trusted as long as it is, for the end shows what is wrong with it. Where it
states none, only what was synced counts after a restart: a machine that lost its power may have
left the rest as zeros.
"""

import os
from pathlib import Path

import msgspec

from mizzen_worker.fetch.disk import sync_folder, write_whole
from mizzen_worker.fetch.hashes import FileHash
from mizzen_worker.fetch.listing import PART_SUFFIX, RemoteFile

SYNC_BYTES = 64 << 20
_READ_BYTES = 4 << 20


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept beside a part: the ETag of the answer that it is from, and what is synced."""

    etag: str = ""
    synced: int = 0


class PartFile:
    """Not thread safe. Use it in a ``with`` block."""

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        self.path = folder / file.path
        self._file = file
        self._part = self.path.with_name(self.path.name + PART_SUFFIX)
        self._state_path = self.path.with_name(f"{self.path.name}{PART_SUFFIX}.state")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._state = self._read_state()
        # O_NOFOLLOW: nobody else writes here, and if somebody did it would show.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._part, flags, 0o644)
        self._hash = FileHash(file.size, file.stated)
        self.offset = 0
        self._take_what_is_there()

    @property
    def etag(self) -> str:
        """Of the answer that the bytes so far are from; empty where it had none."""
        return self._state.etag

    def begin(self, etag: str) -> None:
        """Drop what is there and begin anew, from an answer of this ETag."""
        os.ftruncate(self._descriptor, 0)
        self._hash = FileHash(self._file.size, self._file.stated)
        self.offset = 0
        self._note(PartState(etag=etag))

    def append(self, chunk: bytes) -> None:
        """Write the next bytes; raises ``OSError``."""
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._descriptor, view, self.offset)
            self._hash.update(view[:written])
            self.offset += written
            view = view[written:]
        if self._file.stated is None and self.offset - self._state.synced >= SYNC_BYTES:
            os.fdatasync(self._descriptor)
            self._note(PartState(etag=self._state.etag, synced=self.offset))

    def is_as_stated(self) -> bool:
        """Tell whether a whole part has the size and the hash that its source states."""
        return self.offset == self._file.size and self._hash.is_as_stated()

    def finish(self) -> str:
        """Put the whole file in its place for good; gives its SHA-256."""
        os.fsync(self._descriptor)
        self._part.replace(self.path)
        sync_folder(self.path.parent)
        self._state_path.unlink(missing_ok=True)
        return self._hash.sha256

    def close(self) -> None:
        """Keep the part for another time."""
        os.close(self._descriptor)

    def _take_what_is_there(self) -> None:
        size = os.fstat(self._descriptor).st_size
        trusted = size if self._file.stated is not None else min(size, self._state.synced)
        if trusted > self._file.size:
            trusted = 0
        os.ftruncate(self._descriptor, trusted)
        while self.offset < trusted:
            chunk = os.pread(self._descriptor, min(_READ_BYTES, trusted - self.offset), self.offset)
            if not chunk:
                break
            self._hash.update(chunk)
            self.offset += len(chunk)

    def _read_state(self) -> PartState:
        try:
            return msgspec.json.decode(self._state_path.read_bytes(), type=PartState)
        except (FileNotFoundError, msgspec.DecodeError):
            return PartState()

    def _note(self, state: PartState) -> None:
        if state != self._state:
            write_whole(self._state_path, msgspec.json.encode(state))
            self._state = state
