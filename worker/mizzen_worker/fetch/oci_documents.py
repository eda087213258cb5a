"""Owns what manifests of the OCI image specification say: which manifest, which layers. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from mizzen_worker.contracts.fetch import STATE_FOLDER
from mizzen_worker.fetch.listing import (
    MAX_FILE_BYTES,
    Archive,
    Compression,
    HashKind,
    Listing,
    RemoteFile,
    Stated,
    choose_files,
    is_safe_file,
    require_sound_path,
)
from mizzen_worker.fetch.source import invalid

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
LAYERS_FOLDER = f"{STATE_FOLDER}/layers"
_PATH_ANNOTATIONS = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_UNPACK_ANNOTATION = "io.deis.oras.content.unpack"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_LAYERS = 1000
_CHALLENGE = re.compile(r"(\w+)\s+(.*)", re.DOTALL)
_PARAMETER = re.compile(r'([\w-]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')


def choose_manifest(index: Mapping[str, object], architecture: str) -> str:
    """Digest of an index's manifest for a machine, or of its only one; raises ``FetchError``."""
    entries = [entry for entry in _objects(index, "manifests") if not _is_attestation(entry)]
    fitting = [entry for entry in entries if _architecture(entry) == architecture]
    found = fitting or entries
    if len(found) != 1:
        msg = (
            f"the image has {len(found)} manifests that are as good for {architecture}; name one "
            "by its digest"
        )
        raise invalid(msg)
    return digest_of(found[0])


def read_layers(manifest: Mapping[str, object], allow: Sequence[str]) -> Listing:
    """Files that layers hold as they are, and layers that are archives; no revision yet.

    A layer with a file's name is that file, whatever its type says, unless it says too that it is
    to be unpacked: tools push files as tar layers where no type is given. Raises ``FetchError``.
    """
    layers = list(_objects(manifest, "layers"))
    if len(layers) > _MAX_LAYERS:
        msg = f"the image has more than {_MAX_LAYERS} layers; use one with fewer"
        raise invalid(msg)
    files: list[RemoteFile] = []
    archives: list[Archive] = []
    for layer in layers:
        path = _path(layer)
        if path is not None:
            files.append(_blob(layer, path))
            continue
        compression = _compression(str(layer.get("mediaType")))
        if compression is not None:
            digest = digest_of(layer)
            blob = _blob(layer, f"{LAYERS_FOLDER}/{digest.partition(':')[2]}")
            archives.append(Archive(blob=blob, compression=compression))
    if archives:
        # What they hold is known when they are here; it is chosen among all of it then.
        chosen = tuple(file for file in files if is_safe_file(file.path))
        for file in chosen:
            require_sound_path(file.path)
    else:
        chosen = choose_files(files, allow)
    return Listing(revision="", files=chosen, archives=_without_repeats(archives))


def digest_of(descriptor: Mapping[str, object]) -> str:
    """A descriptor's digest; raises ``FetchError`` for other kinds than SHA-256."""
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        msg = f"the image names something by {digest!r}; only sha256 digests are known"
        raise invalid(msg)
    return digest


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Scheme in lower case and parameters of a WWW-Authenticate header."""
    match = _CHALLENGE.fullmatch(header.strip())
    if match is None:
        return header.strip().lower(), {}
    parameters = {
        name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(match[2])
    }
    return match[1].lower(), parameters


def token_query(parameters: Mapping[str, str]) -> str:
    """Query of the request for a token."""
    names = (name for name in ("service", "scope") if parameters.get(name))
    return "&".join(f"{name}={quote(parameters[name], safe='')}" for name in names)


def _path(layer: Mapping[str, object]) -> str | None:
    annotations = layer.get("annotations")
    if not isinstance(annotations, dict) or annotations.get(_UNPACK_ANNOTATION) == "true":
        return None
    for name in _PATH_ANNOTATIONS:
        found = annotations.get(name)
        if isinstance(found, str):
            return found
    return None


def _compression(media_type: str) -> Compression | None:
    """None for a layer that is no archive, such as an attestation."""
    if "tar" not in re.split(r"[.+]", media_type):
        return None
    if media_type.endswith("gzip"):
        return Compression.GZIP
    return Compression.ZSTD if media_type.endswith("zstd") else Compression.NONE


def _blob(layer: Mapping[str, object], path: str) -> RemoteFile:
    digest, size = digest_of(layer), layer.get("size")
    if not isinstance(size, int) or not 0 <= size <= MAX_FILE_BYTES:
        msg = f"layer {digest} has a size of {size!r}; check the image"
        raise invalid(msg)
    stated = Stated(HashKind.SHA256, digest.partition(":")[2])
    return RemoteFile(path=path, size=size, locator=digest, stated=stated)


def _without_repeats(archives: Sequence[Archive]) -> tuple[Archive, ...]:
    """Each layer once, where it stands last."""
    kept = {archive.blob.locator: archive for archive in reversed(archives)}
    return tuple(reversed(kept.values()))


def _objects(document: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        msg = f"the registry's manifest has no list of {key}; check the image"
        raise invalid(msg)
    yield from entries


def _architecture(entry: Mapping[str, object]) -> str | None:
    platform = entry.get("platform")
    if not isinstance(platform, dict) or platform.get("os") not in {"linux", None}:
        return None
    found = platform.get("architecture")
    return found if isinstance(found, str) else None


def _is_attestation(entry: Mapping[str, object]) -> bool:
    platform = entry.get("platform")
    return isinstance(platform, dict) and platform.get("architecture") == "unknown"
