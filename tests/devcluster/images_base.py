"""Owns the image that a registry would give: a Debian with Python.

It is made here from packages, so that our Dockerfiles build where no registry can be reached.
Not here: our own images (images.py).
"""

import hashlib
import shutil
from pathlib import Path

from tests.devcluster.images_store import ImageStore, Say, stream

SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates")
_RECIPE = hashlib.sha256(repr((SUITE, PACKAGES, 1)).encode()).hexdigest()[:12]
BASE = f"localhost/mizzen/base:{SUITE}-{_RECIPE}"
# Lists, archives and logs of the package manager: no program needs them, every image would carry
# them. Relative to the root of the base.
_EXPENDABLE = ("var/cache/apt", "var/lib/apt/lists", "var/log", "var/cache/debconf")


def build_base(store: ImageStore, say: Say) -> None:
    """Make the base image with debootstrap if it is not there."""
    if store.has(BASE):
        return
    root = store.scratch / "base"
    packages = ",".join(PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root)]
    stream(command, say=say)
    for name in _EXPENDABLE:
        _empty(root / name)
    store.from_folder(BASE, root)
    shutil.rmtree(root)


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
