"""Owns how a node gets an image: its layers are shared with the image store by hard links.

A layer lies unpacked in buildah's store. Its tree is linked, file by file, into a new snapshot of
the node's containerd, which then gets the image's two small documents as an archive without layers.
So nothing is packed, copied or stored twice, every node shares the same bytes (and page cache), and
an image whose lower layers are known costs only its top layer.
Not here: how images are made (images.py), where a node's containerd is (the caller's Runtime).

Invariants: a snapshot is committed, under its chain's name, only after its whole tree is there; one
that was not is removed by the next load. Whoever loads holds the store's load lock.
"""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from tests.devcluster.archive import pack
from tests.devcluster.cluster import Cluster
from tests.devcluster.folders import Lock
from tests.devcluster.images import user_builder
from tests.devcluster.images_store import Image, ImageError, Say, digest_of

_UNFINISHED = "mizzen-load-"
_ROOT_LABEL = "containerd.io/gc.root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A node's containerd: its root folder, and the command line of its client for arguments."""

    store: Path
    ctr: Callable[..., list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a load did: how many layers the node did not have."""

    new_layers: int
    known_layers: int


def chain_ids(image: Image) -> tuple[str, ...]:
    """Name each layer together with all below it, as the OCI image specification does."""
    chain: list[str] = []
    for layer in image.layers:
        both = f"{chain[-1]} {layer.diff_id}" if chain else layer.diff_id
        chain.append(f"sha256:{sha256(both.encode()).hexdigest()}" if chain else layer.diff_id)
    return tuple(chain)


def load(image: Image, runtime: Runtime) -> Loaded:
    """Make an image known to a node; does nothing when it is."""
    lock = Lock.take(runtime.store.with_name(f"{runtime.store.name}.load.lock"))
    try:
        return _load(image, runtime)
    finally:
        lock.release()


def _load(image: Image, runtime: Runtime) -> Loaded:
    chain = chain_ids(image)
    snapshots = _snapshots(runtime)
    for key in snapshots:
        if key.startswith(_UNFINISHED):
            _do(runtime, "snapshots", "rm", key)
    new = 0
    for index, layer in enumerate(image.layers):
        if chain[index] in snapshots:
            continue
        _link_layer(runtime, layer.folder, chain[index], chain[index - 1] if index else "")
        new += 1
    if new or not _has_image(runtime, image):
        _do(runtime, "images", "import", "--local", "-", stdin=_archive(image))
        for name in chain:  # from here on the image, not the label, keeps its layers
            _do(runtime, "snapshots", "label", name, f"{_ROOT_LABEL}=")
    _forget_older(image, runtime)
    return Loaded(new_layers=new, known_layers=len(chain) - new)


def _link_layer(runtime: Runtime, source: Path, name: str, parent: str) -> None:
    key = f"{_UNFINISHED}{uuid.uuid4().hex}"
    _do(runtime, "snapshots", "prepare", key, *([parent] if parent else []))
    target = _upper_folder(_do(runtime, "snapshots", "mounts", "/unused", key))
    same_disk = source.stat().st_dev == target.stat().st_dev
    how = "--link" if same_disk else "--reflink=auto"
    copied = subprocess.run(
        ["cp", "--archive", how, "--no-target-directory", str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if copied.returncode != 0:
        raise ImageError(f"sharing a layer failed: {copied.stderr.strip()}: is the disk full?")
    _do(runtime, "snapshots", "commit", name, key)


def _upper_folder(mount_command: str) -> Path:
    """Find, in ctr's `mount -t overlay overlay /unused -o ...`, the folder that takes the files."""
    words = mount_command.split()
    options = words[words.index("-o") + 1].split(",")
    for option in options:
        if option.startswith("upperdir="):
            return Path(option.removeprefix("upperdir="))
    return Path(words[words.index("-t") + 2])


def _archive(image: Image) -> bytes:
    """Pack an OCI archive of the image's documents; the layers are there already."""
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": json.loads(image.manifest)["mediaType"],
                "digest": image.digest,
                "size": len(image.manifest),
                "annotations": {"io.containerd.image.name": image.name},
            }
        ],
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{
            f"blobs/sha256/{digest_of(blob).removeprefix('sha256:')}": blob
            for blob in (image.manifest, image.config)
        },
    }
    return pack({name: (content, 0o644) for name, content in files.items()})


def _snapshots(runtime: Runtime) -> set[str]:
    return {line.split()[0] for line in _table(_do(runtime, "snapshots", "ls"))}


def _images(runtime: Runtime) -> dict[str, str]:
    """Return the digest of each image by name."""
    rows = (line.split() for line in _table(_do(runtime, "images", "ls")))
    return {row[0]: next(word for word in row if word.startswith("sha256:")) for row in rows}


def _has_image(runtime: Runtime, image: Image) -> bool:
    return _images(runtime).get(image.name) == image.digest


def _forget_older(image: Image, runtime: Runtime) -> None:
    """Remove older images of this repository that no container was made from.

    The runtime keeps a second name for each, by the digest of its configuration; both must go.
    """
    repository = image.name.rpartition(":")[0]
    digests = _images(runtime)
    containers = (line.split()[1] for line in _table(_do(runtime, "containers", "ls")))
    kept = {digests.get(name) for name in containers} | {image.digest}
    older = {
        digest
        for name, digest in digests.items()
        if name.rpartition(":")[0] == repository and digest not in kept
    }
    for name, digest in digests.items():
        if digest in older:
            _do(runtime, "images", "rm", name)


def _table(text: str) -> Iterator[str]:
    """Skip the heading and the empty lines of a listing."""
    return (line for line in text.splitlines()[1:] if line.strip())


def _do(runtime: Runtime, *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        runtime.ctr(*arguments), input=stdin, capture_output=True, check=False, timeout=300
    )
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ImageError(f"ctr {' '.join(arguments)}: {reason}")
    return done.stdout.decode()


def runtimes(cluster: Cluster) -> tuple[Runtime, ...]:
    """Return the containerd of every node of a running cluster."""
    return tuple(
        Runtime(store=cluster.node_store(node), ctr=partial(cluster.ctr_command, node))
        for node in cluster.node_names
    )


def load_everywhere(cluster: Cluster, names: Iterable[str], say: Say) -> None:
    """Make images of the user's store known to every node of a running cluster."""
    builder = user_builder()
    for name in names:
        image = builder.read(name)
        for runtime in runtimes(cluster):
            loaded = load(image, runtime)
            say(f"{name}: {loaded.new_layers} new layers, {loaded.known_layers} known")
