"""Owns CustomResourceDefinitions of other projects, as these published them: for tests only.

They come from Go modules, pinned by version and hash, and are not kept in this repository. Not
here: what is checked against them.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.binaries import BuildError
from tests.devcluster.folders import Folders
from tests.devcluster.toolchain import find_go


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """One file of a Go module."""

    module: str
    version: str
    sum: str
    """Hash of the whole module, as in a go.sum."""
    path: str


HTTP_ROUTES = PublishedFile(
    module="sigs.k8s.io/gateway-api",
    version="v1.5.1",
    sum="h1:RqVRIlkhLhUO8wOHKTLnTJA6o/1un4po4/6M1nRzdd0=",
    path="config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
)
INFERENCE_POOLS = PublishedFile(
    module="sigs.k8s.io/gateway-api-inference-extension",
    version="v1.3.0",
    sum="h1:Ng2Qs1Oum4WycuWyi3rOkAC7pZ2aDqgN2ku6Lr/mryQ=",
    path="config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
)
LEADER_WORKER_SETS = PublishedFile(
    module="sigs.k8s.io/lws",
    version="v0.8.0",
    sum="h1:DdhJ8QabwTfWgbgaHH2gdf8twliioHaoSfmDXRYEVU0=",
    path="config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
)


def published_text(folders: Folders, file: PublishedFile) -> str:
    """The file's text, fetched at first; raises BuildError if it cannot be had as it is pinned."""
    key = hashlib.sha256(f"{file.sum}{file.path}".encode()).hexdigest()[:16]
    kept = folders.published / f"{key}-{Path(file.path).name}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        aside = kept.with_suffix(f".{os.getpid()}")
        aside.write_bytes(_fetch(folders, file))
        aside.replace(kept)
    return kept.read_text(encoding="utf-8")


def _fetch(folders: Folders, file: PublishedFile) -> bytes:
    go = find_go(folders.go / "toolchain")
    wanted = f"{file.module}@{file.version}"
    with tempfile.TemporaryDirectory() as modules:
        environment = {
            **os.environ,
            # The pin below stands in for the database of checksums.
            "GONOSUMDB": "*",
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "GOMODCACHE": modules,
        }
        done = subprocess.run(
            [str(go), "mod", "download", "-json", wanted],
            cwd=modules,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(f"{wanted} could not be fetched: {done.stdout}{done.stderr}")
        found = json.loads(done.stdout)
        if found["Sum"] != file.sum:
            raise BuildError(f"{wanted} has the hash {found['Sum']}, pinned is {file.sum}")
        return (Path(found["Dir"]) / file.path).read_bytes()
