"""Owns fetching one file: continue, restart, compare; owns neither retries nor what comes next."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from mizzen_worker.contracts.errors import FetchError, SourceChangedError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.backend import Backend
from mizzen_worker.fetch.http_client import Answer, HttpClient
from mizzen_worker.fetch.listing import RemoteFile
from mizzen_worker.fetch.part_file import PartFile

CHUNK_BYTES = 1 << 18
"""What is lost of the traffic where the process is killed, at most, for each file in flight."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PARTIAL, _CHANGED, _NO_SUCH_RANGE = 206, 412, 416

Received = Callable[[int], None]
"""Told of each piece's bytes as it comes; raises ``FetchError`` to stop."""


def fetch_part(
    file: RemoteFile, part: PartFile, *, backend: Backend, http: HttpClient, received: Received
) -> None:
    """Bring a part to its end, in one request; raises ``FetchError`` with what came so far kept."""
    if part.offset < file.size:
        _request_rest(file, part, backend=backend, http=http, received=received)
    elif part.offset == 0:
        part.begin("")
    if not part.is_as_stated():
        part.begin("")
        message = (
            f"{file.path}: its content is not what the source states of it; use another mirror or"
            " proxy, or tell whoever publishes it"
        )
        raise FetchError(message, reason=FetchReason.VERIFY_FAILED)


def _request_rest(
    file: RemoteFile, part: PartFile, *, backend: Backend, http: HttpClient, received: Received
) -> None:
    request = backend.request(file)
    headers = {**request.headers, **_range(part)}
    with http.open(replace(request, headers=headers), (_CHANGED, _NO_SUCH_RANGE)) as answer:
        if answer.status == _CHANGED:
            message = f"{file.path}: was changed at the source since it was listed"
            raise SourceChangedError(message, reason=FetchReason.VERIFY_FAILED)
        if answer.status == _NO_SUCH_RANGE:
            part.begin("")
            message = f"{file.path}: the source no longer has the rest of it"
            raise FetchError(message, reason=FetchReason.UNREACHABLE)
        if not _continues(answer, part, file):
            part.begin(_strong_etag(answer.headers))
        _append(answer, part, file, received)


def _append(answer: Answer, part: PartFile, file: RemoteFile, received: Received) -> None:
    for chunk in answer.chunks(CHUNK_BYTES):
        received(len(chunk))
        if part.offset + len(chunk) > file.size:
            part.begin("")
            message = f"{file.path}: is longer than the {file.size} bytes that were listed"
            raise FetchError(message, reason=FetchReason.VERIFY_FAILED)
        part.append(chunk)
    if part.offset < file.size:
        message = f"{file.path}: ended after {part.offset} of {file.size} bytes"
        raise FetchError(message, reason=FetchReason.UNREACHABLE)


def _range(part: PartFile) -> dict[str, str]:
    if part.offset == 0:
        return {}
    headers = {"range": f"bytes={part.offset}-"}
    if part.etag:
        headers["if-range"] = part.etag
    return headers


def _continues(answer: Answer, part: PartFile, file: RemoteFile) -> bool:
    """Tell whether an answer goes on where the part ends, in the same content.

    Servers that know no ranges, or whose content changed, answer with all of it.
    """
    if part.offset == 0 or answer.status != _PARTIAL:
        return False
    found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    is_rest = found is not None and int(found[1]) == part.offset
    is_same_size = found is not None and found[3] in {"*", str(file.size)}
    etag = _strong_etag(answer.headers)
    if is_rest and is_same_size and (not part.etag or not etag or etag == part.etag):
        return True
    part.begin("")
    message = f"{file.path}: the source answered with another part than the one asked for"
    raise FetchError(message, reason=FetchReason.UNREACHABLE)


def _strong_etag(headers: Mapping[str, str]) -> str:
    """Empty for weak ones: they do not promise the same bytes."""
    etag = headers.get("etag", "")
    return etag if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', etag) else ""
