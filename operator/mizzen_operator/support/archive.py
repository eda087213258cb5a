"""Owns the file of a support bundle: a tar.gz that appears whole under its name or not at all.

Does not own what is in it (``bundle``). Invariant: it takes only redacted text, and never more of
it than its bound; what does not fit is noted.
"""

import io
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from mizzen_operator.errors import OperatorError
from mizzen_operator.support.redaction import Redacted, redacted_document

CONTENTS = "contents.json"
_OWNER_ONLY = 0o600


class BundleError(OperatorError):
    """The file cannot be written; the message names it and what to do."""


class Archive:
    """Use it as a context; leaving it without an error puts the file in its place."""

    def __init__(self, file: str, max_bytes: int, made_at: datetime) -> None:
        self._target = Path(file)
        self._part = Path(f"{file}.part")
        self._max_bytes = max_bytes
        self._made_at_s = int(made_at.timestamp())
        self._folder = self._target.name.removesuffix(".gz").removesuffix(".tar")
        self._sizes: dict[str, int] = {}
        self.left_out: list[dict[str, str]] = []
        self.num_bytes = 0
        self.compressed_bytes = 0

    def __enter__(self) -> "Archive":
        if self._target.exists():
            message = f"{self._target} exists: give another name with -o"
            raise BundleError(message)
        try:
            self._part.touch(mode=_OWNER_ONLY)
            self._tar = tarfile.open(self._part, "w:gz")
        except OSError as error:
            raise self._failed(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._tar.close()
            if kind is None:
                self.compressed_bytes = self._part.stat().st_size
                self._part.rename(self._target)
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            self._part.unlink(missing_ok=True)

    @property
    def num_files(self) -> int:
        """Files so far."""
        return len(self._sizes)

    @property
    def is_full(self) -> bool:
        """Nothing more fits."""
        return self.num_bytes >= self._max_bytes

    def add(self, path: str, text: Redacted) -> None:
        """Put a text in, or its beginning as far as it fits."""
        data = text.encode()
        room = max(0, self._max_bytes - self.num_bytes)
        if len(data) > room:
            self.leave_out(path, f"the bundle is full: {len(data) - room} bytes of it are missing")
            data = data[:room]
        if data:
            self._write(path, data)

    def leave_out(self, what: str, why: str) -> None:
        """Note what is missing."""
        self.left_out.append({"what": what, "why": why})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Add the list of contents; it is small and fits always."""
        contents = {**facts, "files": dict(self._sizes), "leftOut": self.left_out}
        self._write(CONTENTS, redacted_document(contents).encode())

    def _write(self, path: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._folder}/{path}")
        entry.size, entry.mode, entry.mtime = len(data), _OWNER_ONLY, self._made_at_s
        try:
            self._tar.addfile(entry, io.BytesIO(data))
        except OSError as error:
            raise self._failed(error) from error
        self._sizes[path] = len(data)
        self.num_bytes += len(data)

    def _failed(self, error: OSError) -> BundleError:
        return BundleError(f"cannot write {self._target}: {error.strerror or error}; give -o FILE")
