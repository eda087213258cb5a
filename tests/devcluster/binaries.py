"""Owns the programs of the cluster: built from pinned Go modules, cached outside the tree.

Only the standard library is used, so that `python3 -m tests.devcluster build` can run while the
rest of the set-up still installs packages. Not here: the toolchain (toolchain.py).

Invariants: a folder of the cache is complete or absent (built aside, then renamed); its name is the
hash of everything that went into it; one builder at a time. Go's own caches last until a build is
complete, so an interrupted one continues.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.devcluster.folders import Folders, Lock
from tests.devcluster.namespaces import die_with_parent
from tests.devcluster.toolchain import find_go

KUBERNETES_VERSION = "v1.36.3"
_SOURCES = Path(__file__).parent / "go"

Show = Callable[[float, str], None]


class BuildError(RuntimeError):
    """A program could not be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A Go module of ours: what it builds, and under which names that is called."""

    name: str
    outputs: dict[str, tuple[str, ...]]
    tags: str = ""
    link_flags: str = "-s -w"


_CLUSTER = (
    Module(
        name="containerd",
        outputs={
            "containerd": ("containerd", "ctr"),
            "shim": ("containerd-shim-runc-v2",),
            "crireset": ("crireset",),
            "pause": ("pause",),
        },
        tags="no_btrfs,no_devmapper,no_zfs",
    ),
    Module(
        name="kubernetes",
        outputs={
            "kubernetes": (
                *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
                *("kubelet", "kube-proxy", "kubectl"),
            ),
            "coredns": ("coredns",),
        },
        link_flags=f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
        f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}",
    ),
)
_PROBE = Module(name="probe", outputs={"probe": ("probe",)})
_KWOK = Module(name="kwok", outputs={"kwok": ("kwok",)})


def cluster_programs(folders: Folders, show: Show) -> Path:
    """Return a folder with every program of the cluster, building what is missing."""
    return _view(folders, _CLUSTER, show)


def probe_program(folders: Folders, show: Show) -> Path:
    """Return the program of the image that the cluster's own tests run."""
    return _view(folders, (_PROBE,), show) / "probe"


def kwok_program(folders: Folders, show: Show) -> Path:
    """Return the program that plays fake nodes."""
    return _view(folders, (_KWOK,), show) / "kwok"


def _view(folders: Folders, modules: Iterable[Module], show: Show) -> Path:
    """Return a folder of links to the modules' programs, by the names they are called by."""
    modules = tuple(modules)
    keys = {module.name: key_of(module) for module in modules}
    view = folders.binaries / hashlib.sha256("".join(keys.values()).encode()).hexdigest()[:16]
    if view.exists():
        return view
    lock = Lock.take(
        folders.binaries / "build.lock",
        before_waiting=lambda: show(0.0, "waiting for another build to end"),
    )
    try:
        for module in modules:
            _ensure(folders, module, folders.binaries / keys[module.name], show)
        aside = Path(tempfile.mkdtemp(prefix="aside-", dir=folders.binaries))
        for module in modules:
            for output, names in module.outputs.items():
                for name in names:
                    (aside / name).symlink_to(Path("..") / keys[module.name] / output)
        if not view.exists():
            aside.rename(view)
        # Several GB, and of no use any more: what is built is built.
        for expendable in (folders.go / "build", folders.go / "modules"):
            shutil.rmtree(expendable, ignore_errors=True)
    finally:
        _sweep(folders.binaries)
        lock.release()
    return view


def _sweep(binaries: Path) -> None:
    """Remove what interrupted builds left; the caller holds the lock."""
    for path in binaries.glob("aside-*"):
        shutil.rmtree(path)


def key_of(module: Module) -> str:
    """Return the name of a module's outputs: a hash of its sources, pins and flags."""
    digest = hashlib.sha256(f"{module.outputs}{module.tags}{module.link_flags}".encode())
    folder = _SOURCES / module.name
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return f"{module.name}-{digest.hexdigest()[:16]}"


def _ensure(folders: Folders, module: Module, target: Path, show: Show) -> None:
    if target.exists():
        return
    go = find_go(folders.go / "toolchain")
    aside = Path(tempfile.mkdtemp(prefix="aside-", dir=folders.binaries))
    packages = [f"./{output}" for output in module.outputs]
    compiled = 0
    total = _count_packages(go, folders, module, packages, show)
    command = [
        *(str(go), "build", "-v", "-trimpath", "-tags", module.tags),
        *("-ldflags", module.link_flags, "-o", f"{aside}/", *packages),
    ]
    other: list[str] = []
    with _run_go(command, folders, module, subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " " in line.strip() or line.startswith("\t"):
                other.append(line)
                continue
            compiled += 1
            show(min(compiled / total, 1.0), f"building {module.name}: {compiled}/{total} packages")
    if process.returncode != 0:
        raise BuildError(f"{module.name} could not be built:\n{''.join(other[-20:])}")
    show(1.0, f"built {module.name}")
    aside.rename(target)


def _count_packages(
    go: Path, folders: Folders, module: Module, packages: list[str], show: Show
) -> int:
    command = [str(go), "list", "-deps", "-tags", module.tags, *packages]
    fetched: list[str] = []
    with tempfile.TemporaryFile("w+") as listing:
        with _run_go(command, folders, module, listing) as process:
            assert process.stderr is not None
            for line in process.stderr:
                fetched.append(line)
                show(0.0, f"fetching modules of {module.name}: {len(fetched)}")
        if process.returncode != 0:
            raise BuildError(f"modules of {module.name} are missing:\n{''.join(fetched[-20:])}")
        listing.seek(0)
        return max(len(listing.read().split()), 1)


def _run_go(
    command: list[str], folders: Folders, module: Module, output: IO[str] | int
) -> "subprocess.Popen[str]":
    """Start go with caches of our own, which `make clean` gives back."""
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(folders.go / "build"),
        "GOMODCACHE": str(folders.go / "modules"),
    }
    return subprocess.Popen(
        command,
        cwd=_SOURCES / module.name,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        # A builder that is killed lets its lock go: its go must not build on.
        preexec_fn=die_with_parent,  # noqa: PLW1509 - no other thread runs here
    )
