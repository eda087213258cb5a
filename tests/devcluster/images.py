"""Owns which images there are, what they are made of and when they are built anew.

Not here: the store (images_store.py), the base (images_base.py), a node's copy (images_load.py).

Invariant: an image's tag is the hash of everything that goes into it; a tag that is there is
complete, so a build that was interrupted simply runs again.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.devcluster.folders import REPOSITORY, user_folders
from tests.devcluster.images_base import BASE, build_base
from tests.devcluster.images_store import Image, ImageError, ImageStore, Say
from tests.devcluster.steps import NOTE

CONTEXT = (
    ".ci/image_requirements.py",
    ".ci/setup.lock",
    "LICENSE",
    "README.md",
    "operator",
    "pyproject.toml",
    "requirements.lock",
    "worker",
)
"""What .dockerignore lets through; a test compares them."""
_IGNORED_SUFFIXES = {".pyc", ".so"}
_UV_CACHE = "/var/cache/uv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One of our images."""

    name: str
    dockerfile: str

    @property
    def repository(self) -> str:
        return f"localhost/mizzen/{self.name}"


OPERATOR = Target(name="operator", dockerfile="Dockerfile.operator")
FRONTEND = Target(name="frontend", dockerfile="Dockerfile.worker")
WORKER = Target(name="worker", dockerfile="Dockerfile.worker")
TARGETS = (OPERATOR, FRONTEND, WORKER)


def context_files(repository: Path) -> Iterator[Path]:
    """Yield the files that a build can see, in a stable order."""
    for name in CONTEXT:
        path = repository / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            generated = "__pycache__" in file.parts or file.suffix in _IGNORED_SUFFIXES
            egg_info = any(part.endswith(".egg-info") for part in file.parts)
            if file.is_file() and not generated and not egg_info:
                yield file


def source_key(repository: Path, target: Target, base: str) -> str:
    """Hash everything that goes into an image."""
    files = (repository / target.dockerfile, *context_files(repository))
    return _key(repository, f"{base} {target.name}", files)


def tools_key(repository: Path, base: str) -> str:
    """Hash everything that goes into the stage with the compilers."""
    files = (repository / OPERATOR.dockerfile, repository / ".ci" / "setup.lock")
    return _key(repository, f"{base} tools", files)


def _key(repository: Path, what: str, files: Iterable[Path]) -> str:
    total = hashlib.sha256(what.encode())
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(repository)} {content}\n".encode())
    return total.hexdigest()[:12]


class ImageBuilder:
    """Builds our images from one working tree into one store."""

    def __init__(
        self,
        *,
        store: ImageStore,
        uv_cache: Path,
        repository: Path = REPOSITORY,
    ) -> None:
        self._store = store
        self._uv_cache = uv_cache
        self._repository = repository

    def prepare(self, say: Say) -> None:
        """Make what all images share: the base and the stage with the compilers."""
        repository = "localhost/mizzen/tools"
        name = f"{repository}:{tools_key(self._repository, BASE)}"
        if self._store.has(name):
            return
        with self._store.locked(say):
            build_base(self._store, say)
            self._build(OPERATOR, ("--target", "tools", "--tag", name), say)
            self._store.remove_older(repository)

    def build(self, target: Target, say: Say) -> str:
        """Return the name of the image of what is in the working tree now."""
        key = source_key(self._repository, target, BASE)
        name = f"{target.repository}:{key}"
        if self._store.has(name):
            return name
        say(f"{NOTE}{target.name} is built: {self._reason(target)}")
        with self._store.locked(say):
            build_base(self._store, say)
            self._build(target, ("--target", target.name, "--tag", name), say)
            self._store.remove_older(target.repository)
            self._store.trim()
        return name

    def build_all(self, say: Say) -> dict[str, str]:
        """Return the name of every image by target."""
        return {target.name: self.build(target, say) for target in TARGETS}

    def read(self, name: str) -> Image:
        return self._store.read(name)

    def _reason(self, target: Target) -> str:
        others = [name for name in self._store.names() if name.startswith(f"{target.repository}:")]
        return "its sources changed" if others else "it is not in the store"

    def _build(self, target: Target, arguments: tuple[str, ...], say: Say) -> None:
        self._uv_cache.mkdir(parents=True, exist_ok=True)
        self._store.build(
            arguments=[
                *("--file", str(self._repository / target.dockerfile)),
                *("--build-arg", f"BASE={BASE}"),
                *("--build-arg", f"UV_FLAGS=--cache-dir={_UV_CACHE}"),
                *("--volume", f"{self._uv_cache}:{_UV_CACHE}"),
                *arguments,
            ],
            context=self._repository,
            say=say,
        )


def user_builder() -> ImageBuilder:
    """Build into the store of the user who runs this, with the packages that set-up downloaded."""
    root = user_folders().root
    return ImageBuilder(store=ImageStore(root / "images"), uv_cache=root / "uv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build from the command line: prints progress, then the name of each image."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.devcluster.images", description="Build our images with buildah."
    )
    parser.add_argument("verb", choices=("prepare", "build"))
    by_name = {target.name: target for target in TARGETS}
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(by_name)} (default: all)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.targets if name not in by_name]:
        parser.error(f"{unknown[0]!r} is no image: choose from {', '.join(by_name)}")
    builder = user_builder()
    say = partial(print, flush=True)
    try:
        if options.verb == "prepare":
            builder.prepare(say)
            return 0
        for name in options.targets or by_name:
            say(builder.build(by_name[name], say))
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
