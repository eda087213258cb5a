"""Owns the two images that a registry would give: a Debian with Python, and uv.

Both are made here from packages, so that our Dockerfiles build where no registry can be reached.
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


def build_base(store: ImageStore, say: Say) -> str:
    """Return the base image's name, made with debootstrap when it is not there."""
    if store.has(BASE):
        return BASE
    root = store.scratch / "base"
    packages = ",".join(PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root)]
    stream(command, say=say)
    for name in _EXPENDABLE:
        _empty(root / name)
    store.from_folder(BASE, root)
    shutil.rmtree(root)
    return BASE


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or not path.is_dir():
            path.unlink()


def uv_name(program: Path) -> str:
    """Name the image of a uv program by its content."""
    return f"localhost/mizzen/uv:{hashlib.sha256(program.read_bytes()).hexdigest()[:12]}"


def build_uv(store: ImageStore, program: Path) -> str:
    """Return the name of an image that holds the given uv program as /uv, and nothing else."""
    name = uv_name(program)
    if not store.has(name):
        folder = store.scratch / "uv"
        folder.mkdir()
        shutil.copy2(program, folder / "uv")
        store.from_folder(name, folder)
    return name
