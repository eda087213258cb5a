"""Owns how weights are identified by content; reads files, interprets nothing in them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

_WHOLE_FILE_LIMIT_BYTES = 1 << 30
_WINDOW_BYTES = 1 << 20
_NUM_WINDOWS = 64


def _update_from(digest: "hashlib._Hash", path: Path, size_bytes: int) -> None:
    """Feed the whole file, or above the limit its start and evenly spaced windows."""
    with path.open("rb") as file:
        if size_bytes <= _WHOLE_FILE_LIMIT_BYTES:
            while chunk := file.read(_WINDOW_BYTES):
                digest.update(chunk)
            return
        digest.update(file.read(16 * _WINDOW_BYTES))
        for window in range(_NUM_WINDOWS):
            file.seek((size_bytes - _WINDOW_BYTES) * window // (_NUM_WINDOWS - 1))
            digest.update(file.read(_WINDOW_BYTES))


def content_fingerprint(paths: Sequence[Path]) -> str:
    """``sha256:`` or, when a file is above 1 GiB, ``sampled-sha256:`` over the files in order.

    A sampled fingerprint tells apart different models and quantisations; it does not prove that
    two large files agree in every byte.
    """
    digest = hashlib.sha256()
    is_sampled = False
    for path in paths:
        size_bytes = path.stat().st_size
        is_sampled = is_sampled or size_bytes > _WHOLE_FILE_LIMIT_BYTES
        digest.update(size_bytes.to_bytes(8, "little"))
        _update_from(digest, path, size_bytes)
    return f"{'sampled-' if is_sampled else ''}sha256:{digest.hexdigest()}"
