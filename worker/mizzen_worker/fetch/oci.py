"""Owns the distribution specification's HTTP API: manifests, blobs, tokens; owns no download."""

import base64
import hashlib
import json
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.http_client import (
    REDIRECTS,
    Answer,
    HttpClient,
    HttpRequest,
    show_url,
    split_url,
)
from mizzen_worker.fetch.listing import Listing, RemoteFile
from mizzen_worker.fetch.oci_documents import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    choose_manifest,
    parse_challenge,
    read_layers,
    token_query,
)
from mizzen_worker.fetch.source import OciSource, invalid

_ARCHITECTURE_BY_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_ALIASES = {"docker.io": "registry-1.docker.io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OciAccess:
    """Who asks; empty strings for nobody. ``is_plain_http``: the registry speaks no TLS."""

    username: str
    password: str = field(repr=False)
    is_plain_http: bool

    def basic(self) -> str:
        """Value of an Authorization header, empty for nobody."""
        if not self.username and not self.password:
            return ""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


class OciBackend:
    """An image or artifact. A registry on this machine is asked without TLS, as tools do."""

    def __init__(
        self, source: OciSource, http: HttpClient, access: OciAccess, *, allow: Sequence[str]
    ) -> None:
        host = source.registry.rpartition(":")[0] or source.registry
        is_plain = access.is_plain_http or host in _LOCAL_HOSTS
        registry = _ALIASES.get(source.registry, source.registry)
        self._source = source
        self._http = http
        self._access = access
        self._origin = f"{'http' if is_plain else 'https'}://{registry}"
        self._allow = tuple(allow)
        self._authorization = ""
        self._lock = threading.Lock()

    def list_files(self) -> Listing:
        """See ``Backend``. A tag is resolved to its digest once, here."""
        document, digest = self._manifest(self._source.reference)
        if document.get("mediaType") in INDEX_TYPES or "manifests" in document:
            machine = platform.machine()
            chosen = choose_manifest(document, _ARCHITECTURE_BY_MACHINE.get(machine, machine))
            document, _ = self._manifest(chosen)
        listing = read_layers(document, self._allow)
        return msgspec.structs.replace(listing, revision=digest)

    def request(self, file: RemoteFile) -> HttpRequest:
        """See ``Backend``.

        The registry is asked first whether it knows us still: tokens live for minutes, and the
        request itself may be redirected to a store that knows nobody.
        """
        url = self._url("blobs", file.locator)
        with self._open(HttpRequest(url=url, method="HEAD", follows_redirects=False)):
            return HttpRequest(url=url, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        with self._lock:
            return {"authorization": self._authorization} if self._authorization else {}

    def _url(self, kind: str, reference: str) -> str:
        return f"{self._origin}/v2/{self._source.repository}/{kind}/{reference}"

    def _manifest(self, reference: str) -> tuple[dict[str, object], str]:
        url = self._url("manifests", reference)
        request = HttpRequest(url=url, headers={"accept": ", ".join(MANIFEST_TYPES + INDEX_TYPES)})
        with self._open(request) as answer:
            body = answer.document()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            message = f"{show_url(url)}: the manifest's digest is {digest}"
            raise FetchError(message, reason=FetchReason.VERIFY_FAILED)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            msg = f"{show_url(url)}: is no manifest; check the registry"
            raise invalid(msg) from error
        if not isinstance(document, dict):
            msg = f"{show_url(url)}: is no manifest; check the registry"
            raise invalid(msg)
        return document, digest

    def _open(self, request: HttpRequest) -> Answer:
        """Ask, and ask again as somebody where the registry wants to know who it is."""
        answer = self._http.open(self._signed(request), accept=(401, *REDIRECTS))
        if answer.status != 401:
            return answer
        with answer:
            challenge = answer.headers.get("www-authenticate", "")
        authorization = self._answer_to(challenge)
        with self._lock:
            self._authorization = authorization
        return self._http.open(self._signed(request), accept=REDIRECTS)

    def _signed(self, request: HttpRequest) -> HttpRequest:
        return replace(request, headers={**request.headers, **self._headers()})

    def _answer_to(self, challenge: str) -> str:
        scheme, parameters = parse_challenge(challenge)
        basic = self._access.basic()
        if scheme == "basic":
            if not basic:
                msg = f"{self._source.text}: wants to know who asks"
                raise _unauthorized(msg)
            return basic
        realm = parameters.get("realm", "")
        allowed = ("http", "https") if self._origin.startswith("http:") else ("https",)
        if scheme != "bearer" or split_url(realm).scheme not in allowed:
            msg = f"{self._source.text}: asks for credentials of an unknown kind {scheme!r}"
            raise _unauthorized(msg)
        query = token_query(parameters)
        headers = {"authorization": basic} if basic else {}
        with self._http.open(HttpRequest(url=f"{realm}?{query}", headers=headers)) as answer:
            found = answer.json()
        token = found.get("token") or found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str) or not token.isprintable():
            msg = f"{show_url(realm)}: gives no token"
            raise _unauthorized(msg)
        return f"Bearer {token}"


def _unauthorized(message: str) -> FetchError:
    return FetchError(message, reason=FetchReason.UNAUTHORIZED)
