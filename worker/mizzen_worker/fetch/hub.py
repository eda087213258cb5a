"""Owns the HTTP API of a Hugging Face hub: revision, tree, files; owns no download."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from mizzen_worker.fetch.http_client import HttpClient, HttpRequest, join_url, show_url, split_url
from mizzen_worker.fetch.listing import (
    MAX_FILES,
    HashKind,
    Listing,
    RemoteFile,
    Stated,
    choose_files,
)
from mizzen_worker.fetch.source import HubSource, invalid

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')


class HubBackend:
    """A repository; a token goes to the hub's own origin only."""

    def __init__(
        self,
        source: HubSource,
        http: HttpClient,
        *,
        endpoint: str,
        token: str,
        allow: Sequence[str],
    ) -> None:
        if split_url(endpoint).scheme not in {"http", "https"}:
            msg = f"HF_ENDPOINT {endpoint!r} is no address; write https://HOST"
            raise invalid(msg)
        self._source = source
        self._http = http
        self._endpoint = endpoint.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._allow = tuple(allow)

    def list_files(self) -> Listing:
        """See ``Backend``. A branch or tag is resolved to its commit once, here."""
        base = f"{self._endpoint}/api/models/{self._source.repository}"
        url = f"{base}/revision/{quote(self._source.revision, safe='')}"
        with self._http.open(HttpRequest(url=url, headers=self._headers)) as answer:
            found = answer.json()
        commit = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            msg = f"{show_url(url)}: names no commit; check the endpoint"
            raise invalid(msg)
        files = list(self._files(f"{base}/tree/{commit}?recursive=true"))
        return Listing(revision=commit, files=choose_files(files, self._allow))

    def request(self, file: RemoteFile) -> HttpRequest:
        """See ``Backend``."""
        return HttpRequest(url=f"{self._endpoint}/{file.locator}", headers=self._headers)

    def _files(self, first: str) -> Iterator[RemoteFile]:
        commit = split_url(first).path.rpartition("/")[2]
        url: str | None = first
        num_entries = 0
        while url is not None:
            with self._http.open(HttpRequest(url=url, headers=self._headers)) as answer:
                entries, link = answer.json(), answer.headers.get("link", "")
            if not isinstance(entries, list):
                msg = f"{show_url(url)}: lists no files; check the endpoint"
                raise invalid(msg)
            num_entries += max(1, len(entries))
            if num_entries > MAX_FILES:
                msg = f"{show_url(url)}: lists more than {MAX_FILES} files"
                raise invalid(msg)
            for entry in entries:
                if isinstance(entry, dict) and entry.get("type") == "file":
                    yield self._file(entry, commit)
            following = _NEXT.search(link)
            url = None if following is None else self._own(join_url(url, following[1]))

    def _own(self, url: str) -> str:
        if split_url(url)[:2] != split_url(self._endpoint)[:2]:
            msg = f"{show_url(url)}: the list goes on at another host; check the endpoint"
            raise invalid(msg)
        return url

    def _file(self, entry: dict[str, object], commit: str) -> RemoteFile:
        match entry:
            case {"path": str(path), "lfs": {"oid": str(digest), "size": int(size)}}:
                stated = Stated(HashKind.SHA256, digest.lower())
            case {"path": str(path), "oid": str(digest), "size": int(size)}:
                stated = Stated(HashKind.GIT_BLOB, digest.lower())
            case _:
                msg = "the hub lists a file without path, size or hash; check the endpoint"
                raise invalid(msg)
        locator = f"{self._source.repository}/resolve/{commit}/{quote(path)}"
        return RemoteFile(path=path, size=size, locator=locator, stated=stated)
