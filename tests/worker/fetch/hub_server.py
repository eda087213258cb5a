"""A hub that speaks the HTTP API of Hugging Face's: revision, paged tree, resolve, content server.

test_hub_real_client.py shows that Hugging Face's own client takes it for one.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.worker.fetch.faulty_server import FaultyServer, Reply, Request, serving

PAGE_SIZE = 3
LFS_BYTES = 2000
TOKEN = "hf_a-secret-of-tests"


@dataclass
class HubRepository:
    """One repository, at one commit at a time."""

    name: str
    files: dict[str, bytes]
    is_gated: bool = False

    @property
    def commit(self) -> str:
        content = b"".join(
            name.encode() + hashlib.sha1(body).digest() for name, body in self.files.items()
        )
        return hashlib.sha1(content).hexdigest()


@dataclass
class Hub:
    """The hub and its content server, which wants no token and must get none."""

    repository: HubRepository
    api: FaultyServer = field(init=False)
    content: FaultyServer = field(init=False)

    def answer(self, request: Request) -> Reply:
        repository = self.repository
        if repository.name not in request.path:
            return _error(401, "RepoNotFound", "Repository not found")
        is_known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if repository.is_gated and not is_known:
            return _error(401, "GatedRepo", f"Access to model {repository.name} is restricted")
        rest = request.path.partition(repository.name)[2].split("/")[1:]
        return self._answer_to(rest, request)

    def _answer_to(self, rest: list[str], request: Request) -> Reply:
        repository = self.repository
        match rest:
            case ["revision", "main" | repository.commit]:
                siblings = [{"rfilename": name} for name in repository.files]
                found = {"id": repository.name, "sha": repository.commit, "siblings": siblings}
                return _json(found)
            case ["revision", _]:
                return _error(404, "RevisionNotFound", "Invalid rev id")
            case ["tree", repository.commit]:
                return self._tree(int(request.query.get("cursor", "0")))
            case ["resolve", "main" | repository.commit, *path] if path:
                return self._resolve("/".join(path))
        return _error(404, "EntryNotFound", "Entry not found")

    def answer_content(self, request: Request) -> Reply:
        name = request.path.removeprefix("/blobs/")
        body = self.repository.files[name]
        if request.query.get("signature") != "s":
            return Reply(status=403)
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        return Reply(body=body, headers={"ETag": etag, "Accept-Ranges": "bytes"}, has_ranges=True)

    def _tree(self, start: int) -> Reply:
        names = sorted(self.repository.files)
        entries = [_entry(name, self.repository.files[name]) for name in names]
        folders = sorted({name.rpartition("/")[0] for name in names if "/" in name})
        entries += [{"type": "directory", "path": folder, "oid": "0" * 40} for folder in folders]
        following = start + PAGE_SIZE
        reply = _json(entries[start:following])
        if following < len(entries):
            commit = self.repository.commit
            base = f"{self.api.url}/api/models/{self.repository.name}/tree/{commit}"
            reply.headers["Link"] = f'<{base}?recursive=true&cursor={following}>; rel="next"'
        return reply

    def _resolve(self, path: str) -> Reply:
        if path not in self.repository.files:
            return _error(404, "EntryNotFound", "Entry not found")
        body = self.repository.files[path]
        commit = {"X-Repo-Commit": self.repository.commit}
        if len(body) < LFS_BYTES:
            etag = f'"{_git_blob(body)}"'
            return Reply(body=body, headers={"ETag": etag} | commit, has_ranges=True)
        linked = {
            "X-Linked-ETag": f'"{hashlib.sha256(body).hexdigest()}"',
            "X-Linked-Size": str(len(body)),
            "Location": f"{self.content.url}/blobs/{path}?signature=s",
        }
        return Reply(status=302, headers=commit | linked)


@contextmanager
def hub_with(files: dict[str, bytes], *, is_gated: bool = False) -> Iterator[Hub]:
    """Serve one repository named ``org/tiny``."""
    hub = Hub(HubRepository(name="org/tiny", files=files, is_gated=is_gated))
    with serving(hub.answer) as api, serving(hub.answer_content) as content:
        hub.api, hub.content = api, content
        yield hub


def _entry(name: str, body: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file",
        "oid": _git_blob(body),
        "size": len(body),
        "path": name,
    }
    if len(body) >= LFS_BYTES:
        sha256 = hashlib.sha256(body).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(body), "pointerSize": 134}
    return entry


def _git_blob(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def _json(value: object) -> Reply:
    return Reply(body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def _error(status: int, code: str, message: str) -> Reply:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return Reply(status=status, body=json.dumps({"error": message}).encode(), headers=headers)
