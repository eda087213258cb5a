"""Owns what the cell's mount namespace hides: everything the machine must not notice.

Runs inside the cell, first of all. Not here: addresses and routes (network.py).

Invariants, from the return of seal() on:
- no mount made here is seen outside;
- what components write below /run, /var/lib and /var/log stays in a tmpfs that dies with the cell;
- the machine's sysctls cannot be changed from here: the six that a kubelet insists on are covered
  by plain files that already hold the values it wants, the rest of that tree is read-only. Only
  /proc/sys/net stays writable, and that one belongs to the network namespace.
"""

from pathlib import Path

from tests.devcluster.namespaces import MS_BIND, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT, mount

RUN = Path("/run/mizzen")
_OVERLAID = (Path("/var/lib"), Path("/var/log"))
_READ_ONLY = (Path("/proc/sys/kernel"), Path("/proc/sys/vm"), Path("/proc/sys/fs"))
# What a kubelet sets machine-wide, and refuses to start without.
_KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Folders whose content the cell and the machine must see alike cannot lie below these.
HIDDEN = (Path("/run"), Path("/var/run"), *_OVERLAID)


def seal() -> None:
    """Cut this mount namespace off from the machine's."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    for folder in _OVERLAID:
        _overlay(folder)
    for folder in _READ_ONLY:
        mount(str(folder), folder, flags=MS_BIND | MS_REC)
        mount("none", folder, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
    for name, value in _KUBELET_SYSCTLS.items():
        _shield(name, value)


def _overlay(folder: Path) -> None:
    layers = RUN / "overlay" / folder.name
    upper, work = layers / "upper", layers / "work"
    upper.mkdir(parents=True)
    work.mkdir()
    options = f"lowerdir={folder},upperdir={upper},workdir={work}"
    mount("overlay", folder, "overlay", options=options)


def _shield(name: str, value: str) -> None:
    cover = RUN / "sysctl" / name
    cover.parent.mkdir(parents=True, exist_ok=True)
    cover.write_text(value + "\n")
    mount(str(cover), Path("/proc/sys") / name, flags=MS_BIND)
