"""Owns HTTP: connections, redirects, and which answer is which error; owns no protocol above it.

Invariants: credentials go to the origin that they were given for, never along with a redirect to
another; no redirect leads from https to http; a message shows no query (signed URLs are secrets).
"""

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from urllib.parse import SplitResult, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, SSLError
from urllib3.util import Timeout

from mizzen_worker import __version__
from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason

CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
"""Longest silence in the middle of an answer."""
MAX_DOCUMENT_BYTES = 64 << 20
_MAX_REDIRECTS = 5
_MAX_EXPLANATION_BYTES = 8192
_SHOWN = 200
_PLAIN_HEADERS = ("range", "if-range", "accept")
REDIRECTS = (301, 302, 303, 307, 308)
_RATE_LIMITS = (429, 503)
_PASSING = (408, 425)
_UNAUTHORIZED = (401, 403)
_HEADERS = {"user-agent": f"mizzen/{__version__}", "accept-encoding": "identity"}
_RATE_LIMIT_RESET = re.compile(r"\bt=(\d{1,9})\b")
_XML_MESSAGE = re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A GET or HEAD; header names in lower case."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "GET"
    follows_redirects: bool = True


class Answer:
    """A successful answer whose body is still to be read; use it in a ``with`` block."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str) -> None:
        self._response = response
        self._place = show_url(url)
        self.status = response.status
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in response.headers.items()}

    def __enter__(self) -> "Answer":
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the connection back, or close it where the body was not read to its end."""
        self._response.close()

    def chunks(self, size_bytes: int) -> Iterator[bytes]:
        """The body in pieces; raises ``FetchError`` where the connection is cut or silent."""
        while True:
            try:
                chunk = self._response.read(size_bytes, decode_content=False)
            except (HTTPError, OSError) as error:
                raise _unreachable(self._place, error) from error
            if not chunk:
                return
            yield chunk

    def document(self) -> bytes:
        """The whole body of a listing; raises ``FetchError`` for one without end."""
        body = bytearray()
        for chunk in self.chunks(1 << 16):
            body += chunk
            if len(body) > MAX_DOCUMENT_BYTES:
                message = f"{self._place}: answers with more than {MAX_DOCUMENT_BYTES} bytes"
                raise FetchError(message, reason=FetchReason.INVALID_SOURCE)
        return bytes(body)

    def json(self) -> object:
        """The body as JSON; raises ``FetchError``."""
        try:
            found: object = json.loads(self.document())
        except (ValueError, RecursionError) as error:
            message = f"{self._place}: answers with something else than JSON; check the endpoint"
            raise FetchError(message, reason=FetchReason.INVALID_SOURCE) from error
        return found


class HttpClient:
    """Pooled connections. Thread safe. Certificates are those of OpenSSL (``SSL_CERT_FILE``)."""

    def __init__(self, *, proxies: Mapping[str, str], num_threads: int) -> None:
        self._proxies = dict(proxies)
        context = ssl.create_default_context()
        self._direct = urllib3.PoolManager(maxsize=num_threads, ssl_context=context)
        self._by_proxy = {
            url: urllib3.ProxyManager(url, maxsize=num_threads, ssl_context=context)
            for scheme, url in self._proxies.items()
            if scheme in {"http", "https"}
        }

    def open(self, request: HttpRequest, accept: tuple[int, ...] = ()) -> Answer:
        """The answer with a status of 2xx, or one of ``accept``; raises ``FetchError``."""
        url, headers = request.url, dict(request.headers)
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._ask(request.method, url, headers)
            if answer.status not in REDIRECTS or not request.follows_redirects:
                return _checked(answer, url, accept, is_own_origin=_same_origin(url, request.url))
            with answer:
                target = join_url(url, answer.headers.get("location", ""))
            _require_redirect(url, target)
            if not _same_origin(url, target):
                headers = {k: v for k, v in headers.items() if k in _PLAIN_HEADERS}
            url = target
        message = f"{show_url(request.url)}: leads through more than {_MAX_REDIRECTS} redirects"
        raise FetchError(message, reason=FetchReason.INVALID_SOURCE)

    def close(self) -> None:
        """Close every connection."""
        for pool in (self._direct, *self._by_proxy.values()):
            pool.clear()

    def _ask(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        pool = self._pool(url)
        try:
            response = pool.request(
                method,
                url,
                headers={**_HEADERS, **headers},
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            )
        except LocationValueError as error:
            message = f"{show_url(url)}: is no address: {error}"
            raise FetchError(message, reason=FetchReason.INVALID_SOURCE) from error
        except (HTTPError, OSError) as error:
            raise _unreachable(show_url(url), error) from error
        return Answer(response, url)

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = split_url(url)
        proxy = self._proxies.get(parts.scheme)
        if proxy is None or _needs_no_proxy(parts.hostname or "", self._proxies.get("no", "")):
            return self._direct
        return self._by_proxy[proxy]


def _needs_no_proxy(host: str, exceptions: str) -> bool:
    """Tell whether NO_PROXY names a host: by itself, by a domain above it, or by ``*``."""
    names = (name.strip().lower().lstrip("*").lstrip(".") for name in exceptions.split(","))
    if "*" in (name.strip() for name in exceptions.split(",")):
        return True
    return any(name and (host == name or host.endswith(f".{name}")) for name in names)


def split_url(url: str) -> SplitResult:
    """The parts of a URL that somebody gave us; raises ``FetchError`` where it is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        message = f"{url.partition('?')[0]!r} is no address: {error}"
        raise FetchError(message, reason=FetchReason.INVALID_SOURCE) from error


def join_url(url: str, reference: str) -> str:
    """Where a reference leads from a URL; raises ``FetchError`` where it is none."""
    split_url(reference)
    return urljoin(url, reference)


def show_url(url: str) -> str:
    """A URL without query and user."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _same_origin(one: str, other: str) -> bool:
    first, second = split_url(one), split_url(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def _require_redirect(url: str, target: str) -> None:
    allowed = ("https",) if url.startswith("https:") else ("http", "https")
    if split_url(target).scheme not in allowed:
        message = f"{show_url(url)}: redirects to {show_url(target)}, which is not followed"
        raise FetchError(message, reason=FetchReason.INVALID_SOURCE)


def _unreachable(place: str, error: Exception) -> FetchError:
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = f"{place}: its certificate is not trusted; name the CA's file in SSL_CERT_FILE"
        return FetchError(message, reason=FetchReason.INVALID_SOURCE)
    # The first argument is the sentence; others repeat it as objects.
    words = str(error.args[0] if error.args else error)[:_SHOWN]
    return FetchError(f"{place}: {words}", reason=FetchReason.UNREACHABLE)


def _checked(answer: Answer, url: str, accept: tuple[int, ...], *, is_own_origin: bool) -> Answer:
    """The answer, or what is wrong with it."""
    status = answer.status
    if 200 <= status < 300 or status in accept:
        return answer
    with answer:
        explanation = _explanation(answer)
    message = f"{show_url(url)}: {status} {explanation}".rstrip()
    reason = _reason(answer, explanation, is_own_origin=is_own_origin)
    raise FetchError(message, reason=reason, retry_after_s=asked_delay_s(answer.headers))


def asked_delay_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the other side asks to be left alone; None where it does not.

    A date counts from the other side's own clock. Hubs say it in the fields of a draft, too.
    """
    asked = headers.get("retry-after", "")
    if asked.isdecimal():
        return float(asked[:9])
    try:
        until, now = parsedate_to_datetime(asked), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        found = _RATE_LIMIT_RESET.search(headers.get("ratelimit", ""))
        return float(found[1]) if found is not None else None


def _reason(answer: Answer, explanation: str, *, is_own_origin: bool) -> FetchReason:
    status = answer.status
    if status in _RATE_LIMITS and (status == 429 or "SlowDown" in explanation):
        return FetchReason.RATE_LIMITED
    # A signed address of a content server that is too old: the next attempt gets a new one.
    is_too_old = status in _UNAUTHORIZED and not is_own_origin
    if status >= 500 or status in _PASSING or is_too_old:
        return FetchReason.UNREACHABLE
    # A hub says 401 of what does not exist, so that nobody learns which names are private.
    is_missing = answer.headers.get("x-error-code") in {"RepoNotFound", "RevisionNotFound"}
    if is_missing or status in {404, 410}:
        return FetchReason.NOT_FOUND
    if status in _UNAUTHORIZED:
        return FetchReason.UNAUTHORIZED
    return FetchReason.INVALID_SOURCE


def _explanation(answer: Answer) -> str:
    """What the other side says, in one line."""
    stated = answer.headers.get("x-error-message", "")
    if not stated:
        try:
            body = next(answer.chunks(_MAX_EXPLANATION_BYTES), b"").decode(errors="replace")
        except FetchError:
            body = ""
        stated = _stated_in(body)
    return "".join(c if c.isprintable() else " " for c in stated)[:_SHOWN]


def _stated_in(body: str) -> str:
    found = _XML_MESSAGE.search(body)
    if found is not None:
        return f"{found[1]}: {found[2]}"
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    match value:
        case {"errors": [{"code": str(code), **rest}, *_]}:
            return f"{code}: {rest.get('message', '')}"
        case {"error": str(text)}:
            return text
        case _:
            return ""
