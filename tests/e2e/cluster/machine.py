"""Owns the look at what must not change: interfaces, routes, firewall, sysctls, traces."""

import os
import subprocess
from pathlib import Path

from tests.devcluster.folders import Folders

# They change by themselves all the time.
_VOLATILE = (
    "fs/aio-nr", "fs/dentry-state", "fs/file-nr", "fs/inode-", "kernel/ns_last_pid",
    "kernel/pty/nr", "kernel/random", "net/netfilter/nf_conntrack_count", "fs/binfmt_misc",
)  # fmt: skip
_GROUPS = Path("/sys/fs/cgroup")


def network_state() -> dict[str, str]:
    """Return interfaces, addresses, routes and firewall rules of the network this runs in."""
    commands = {
        "links": "ip -o link",
        "addresses": "ip -o address",
        "routes": "ip route show table all",
        "rules": "nft list ruleset",
    }
    return {name: _output(command) for name, command in commands.items()}


def _output(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
    return done.stdout


def sysctls() -> dict[str, str]:
    """Return every sysctl that can be read and does not change by itself."""
    values = {}
    for folder, _, files in os.walk("/proc/sys"):
        for file in files:
            path = Path(folder, file)
            name = str(path.relative_to("/proc/sys"))
            if name.startswith(_VOLATILE):
                continue
            try:
                values[name] = path.read_text()
            except (OSError, UnicodeDecodeError):
                continue
    return values


def traces(cell: str, cache: Path) -> list[str]:
    """Return what a cell has left on the machine: processes, groups, mounts, files."""
    key = Folders(root=cache / "mizzen").cell(cell).key
    found = [str(path) for path in _GROUPS.glob(f"*mizzen-{key}")]
    found += [str(path) for path in _GROUPS.glob(f"*/mizzen-{key}")]
    folder = str(cache / "mizzen")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"{folder}/cells/{cell}" in command or f"{folder}/stores" in command:
            found.append(f"process {process.name}: {command}")
    found += [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder in line
    ]
    cells = cache / "mizzen" / "cells" / cell
    if cells.exists():
        found += [
            str(path) for path in cells.iterdir() if path.name not in ("logs", "failure.json")
        ]
    return found
