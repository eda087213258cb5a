"""Owns running hashes of a file: our own and the one that its source states. Pure."""

import hashlib
import zlib

from mizzen_worker.fetch.listing import HashKind, Stated


class FileHash:
    """Fed with a file's bytes in order."""

    def __init__(self, size_bytes: int, stated: Stated | None) -> None:
        self._sha256 = hashlib.sha256()
        self._stated = stated
        self._crc32 = 0
        self._other: hashlib._Hash | None = None
        kind = None if stated is None else stated.kind
        if kind is HashKind.GIT_BLOB:
            self._other = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
        elif kind is HashKind.SHA1:
            self._other = hashlib.sha1(usedforsecurity=False)
        elif kind is HashKind.MD5:
            self._other = hashlib.md5(usedforsecurity=False)

    def update(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._sha256.update(chunk)
        if self._other is not None:
            self._other.update(chunk)
        if self._stated is not None and self._stated.kind is HashKind.CRC32:
            self._crc32 = zlib.crc32(chunk, self._crc32)

    @property
    def sha256(self) -> str:
        """Our own, in hex."""
        return self._sha256.hexdigest()

    def is_as_stated(self) -> bool:
        """Tell whether the source's own hash, if it states one, is that of the bytes."""
        stated = self._stated
        if stated is None:
            return True
        if stated.kind is HashKind.SHA256:
            return self.sha256 == stated.value
        if stated.kind is HashKind.CRC32:
            return self._crc32.to_bytes(4).hex() == stated.value
        return self._other is not None and self._other.hexdigest() == stated.value
