"""Owns S3's HTTP API as far as reading goes: lists, checksums, signed requests; no download.

A bucket has no revisions: what a list resolved to is a hash over names, sizes and ETags, and an
object is asked for only as long as it has its ETag.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.etree import ElementTree

import msgspec

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.aws_signature import (
    AwsCredentials,
    S3Request,
    encode_key,
    encode_query,
    signed_headers,
)
from mizzen_worker.fetch.http_client import HttpClient, HttpRequest, show_url, split_url
from mizzen_worker.fetch.listing import (
    MAX_FILES,
    HashKind,
    Listing,
    RemoteFile,
    Stated,
    choose_files,
)
from mizzen_worker.fetch.source import S3Source, invalid

_CHECKSUMS = (
    ("x-amz-checksum-sha256", HashKind.SHA256, 32),
    ("x-amz-checksum-sha1", HashKind.SHA1, 20),
    ("x-amz-checksum-crc32", HashKind.CRC32, 4),
)
_MD5_HEX = 32
_ELSEWHERE = (301, 307)
Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Where the bucket is and who asks; without credentials requests are not signed."""

    endpoint: str
    region: str
    credentials: AwsCredentials | None
    now: Clock

    def origin(self) -> str:
        """Scheme and host; raises ``FetchError``."""
        address = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        parts = split_url(address)
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/"):
            msg = f"AWS_ENDPOINT_URL {address!r} is no address; write https://HOST"
            raise invalid(msg)
        return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list: key, size and ETag of each object, and where the next part begins."""

    objects: tuple[tuple[str, int, str], ...]
    following: str


class S3Backend:
    """A prefix of a bucket, addressed by path."""

    def __init__(
        self, source: S3Source, http: HttpClient, access: S3Access, *, allow: Sequence[str]
    ) -> None:
        self._source = source
        self._http = http
        self._access = access
        self._origin = access.origin()
        self._allow = tuple(allow)

    def list_files(self) -> Listing:
        """See ``Backend``. One request more for each chosen file asks for its checksums."""
        listed = choose_files(list(self._objects()), self._allow)
        lines = "".join(f"{file.path}\t{file.size}\t{file.etag}\n" for file in listed)
        revision = f"etags-sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
        return Listing(revision=revision, files=tuple(map(self._with_checksum, listed)))

    def request(self, file: RemoteFile) -> HttpRequest:
        """See ``Backend``."""
        return self._request("GET", file.locator, {}, _only(file))

    def _with_checksum(self, file: RemoteFile) -> RemoteFile:
        headers = {"x-amz-checksum-mode": "ENABLED", **_only(file)}
        request = self._request("HEAD", file.locator, {}, headers)
        with self._http.open(request, accept=(412,)) as answer:
            if answer.status == 412:
                message = f"{file.path}: was changed while it was listed"
                raise FetchError(message, reason=FetchReason.UNREACHABLE)
            return msgspec.structs.replace(file, stated=stated_hash(answer.headers))

    def _objects(self) -> Iterator[RemoteFile]:
        prefix = f"{self._source.prefix}/" if self._source.prefix else ""
        query = {"list-type": "2", "prefix": prefix, "max-keys": "1000"}
        num_keys = 0
        while True:
            page = self._page(query)
            num_keys += len(page.objects)
            if num_keys > MAX_FILES:
                msg = f"{self._source.text}: more than {MAX_FILES} objects; name a longer prefix"
                raise invalid(msg)
            for key, size, etag in page.objects:
                # What console and tools leave where somebody made a "folder".
                if key.startswith(prefix) and not key.endswith("/"):
                    path = key.removeprefix(prefix)
                    yield RemoteFile(path=path, size=size, locator=key, etag=etag)
            if not page.following:
                return
            query["continuation-token"] = page.following

    def _page(self, query: Mapping[str, str]) -> Page:
        request = self._request("GET", "", query, {})
        with self._http.open(request, accept=_ELSEWHERE) as answer:
            if answer.status in _ELSEWHERE:
                region = answer.headers.get("x-amz-bucket-region", "another one")
                msg = f"bucket {self._source.bucket} is in region {region}; set AWS_REGION to it"
                raise invalid(msg)
            return read_page(answer.document(), show_url(request.url))

    def _request(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> HttpRequest:
        path = f"/{self._source.bucket}" + (f"/{encode_key(key)}" if key else "")
        url = f"{self._origin}{path}" + (f"?{encode_query(query)}" if query else "")
        sent = dict(headers)
        access = self._access
        if access.credentials is not None:
            host = split_url(self._origin).netloc
            request = S3Request(method=method, host=host, path=path, query=query, headers=headers)
            sent = signed_headers(
                request, access.credentials, region=access.region, now=access.now()
            )
        return HttpRequest(url=url, headers=sent, method=method, follows_redirects=False)


def read_page(document: bytes, place: str) -> Page:
    """Read an answer to ListObjectsV2; raises ``FetchError``."""
    try:
        root = ElementTree.fromstring(document)
        # The namespace is there or not, as the server likes.
        objects = tuple(
            (_text(entry, "Key"), int(_text(entry, "Size")), _text(entry, "ETag").strip('"'))
            for entry in root.iterfind("{*}Contents")
        )
    except (ElementTree.ParseError, ValueError) as error:
        msg = f"{place}: is no list of objects: {error}; check the endpoint"
        raise invalid(msg) from error
    is_cut = root.findtext("{*}IsTruncated", "false") == "true"
    return Page(objects=objects, following=_text(root, "NextContinuationToken") if is_cut else "")


def stated_hash(headers: Mapping[str, str]) -> Stated | None:
    """What the headers of an object say of its content as a whole.

    Hashes over hashes of parts, and ETags of objects that the server encrypts, say nothing of it.
    """
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
        for name, kind, size in _CHECKSUMS:
            value = _decoded(headers.get(name, ""))
            if len(value) == size:
                return Stated(kind, value.hex())
    etag = headers.get("etag", "").strip('"').lower()
    is_encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
    is_encrypted |= "x-amz-server-side-encryption-customer-algorithm" in headers
    if len(etag) == _MD5_HEX and not is_encrypted and not set(etag) - set("0123456789abcdef"):
        return Stated(HashKind.MD5, etag)
    return None


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _text(entry: ElementTree.Element, name: str) -> str:
    text = entry.findtext(f"{{*}}{name}")
    if text is None:
        message = f"{name} is missing"
        raise ValueError(message)
    return text


def _only(file: RemoteFile) -> dict[str, str]:
    """Ask for the object that was listed, and for no other that took its place."""
    return {"if-match": f'"{file.etag}"'} if file.etag else {}
