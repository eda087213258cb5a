"""A registry that speaks the distribution specification: tokens, manifests, blobs, redirects.

Written here because no registry comes as a package that every test machine can install; Docker's
own was asked by hand.
"""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import zstandard
from tests.worker.fetch.faulty_server import FaultyServer, Reply, Request, serving

USER, PASSWORD, TOKEN = "puller", "registry-secret", "token-of-tests"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass
class Registry:
    """One repository ``org/tiny`` with a tag ``v1``."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    is_private: bool = False
    redirects: bool = False
    token_uses: int = 0
    """A token is good for so many blobs; 0 for any number."""
    uses_left: int = 0
    server: FaultyServer = field(init=False)
    store: FaultyServer = field(init=False)

    @property
    def source(self) -> str:
        return f"oci://{self.server.host}/org/tiny:v1"

    def put_blob(self, body: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.blobs[digest] = body
        return {"digest": digest, "size": len(body), "mediaType": "application/octet-stream"}

    def put_manifest(self, document: Mapping[str, object], tag: str = "v1") -> str:
        body = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[tag] = self.manifests[digest] = (str(document["mediaType"]), body)
        return digest

    def put_image(self, layers: Sequence[Mapping[str, object]], tag: str = "v1") -> str:
        config = self.put_blob(b"{}")
        return self.put_manifest(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)},
            tag,
        )

    def answer(self, request: Request) -> Reply:
        if request.path == "/token":
            return self._token(request)
        if self.is_private and not self._is_let_in(request):
            challenge = (
                f'Bearer realm="{self.server.url}/token",service="tests",'
                'scope="repository:org/tiny:pull"'
            )
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        kind, _, reference = request.path.removeprefix("/v2/org/tiny/").partition("/")
        if kind == "manifests" and reference in self.manifests:
            media_type, body = self.manifests[reference]
            return Reply(body=body, headers={"Content-Type": media_type})
        if kind == "blobs" and reference in self.blobs:
            if self.redirects:
                location = f"{self.store.url}/{reference}?signature=s"
                return Reply(status=307, headers={"Location": location})
            return Reply(body=self.blobs[reference], has_ranges=True)
        code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
        body = json.dumps({"errors": [{"code": code, "message": "unknown"}]}).encode()
        return Reply(status=404, body=body)

    def answer_store(self, request: Request) -> Reply:
        # As with addresses that are signed for GET.
        if request.method != "GET" or "authorization" in request.headers:
            return Reply(status=403)
        return Reply(body=self.blobs[request.path[1:]], has_ranges=True)

    def _token(self, request: Request) -> Reply:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {pair}":
            return Reply(status=401, body=b'{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}')
        assert request.query == {"service": "tests", "scope": "repository:org/tiny:pull"}
        self.uses_left = self.token_uses
        return Reply(body=json.dumps({"token": TOKEN}).encode())

    def _is_let_in(self, request: Request) -> bool:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return False
        if not self.token_uses or "/blobs/" not in request.path or request.method != "GET":
            return not self.token_uses or self.uses_left > 0
        self.uses_left -= 1
        return True


def packed(
    files: Mapping[str, bytes], compression: str = "", extra: Sequence[tarfile.TarInfo] = ()
):
    """A layer's archive, with its media type."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(body), 0o600
            tar.addfile(entry, io.BytesIO(body))
        for entry in extra:
            tar.addfile(entry)
    body = buffer.getvalue()
    if compression == "gzip":
        body = gzip.compress(body, 1)
    elif compression == "zstd":
        body = zstandard.ZstdCompressor().compress(body)
    return body, f"{LAYER}+{compression}" if compression else LAYER


@contextmanager
def registry_with(
    layers: Sequence[Mapping[str, bytes]] = (), compression: str = "gzip"
) -> Iterator[Registry]:
    """Serve an image of such layers."""
    registry = Registry()
    described = []
    for files in layers:
        body, media_type = packed(files, compression)
        described.append(registry.put_blob(body) | {"mediaType": media_type})
    if described:
        registry.put_image(described)
    with serving(registry.answer) as server, serving(registry.answer_store) as store:
        registry.server, registry.store = server, store
        yield registry
