"""The reader over HTTP: what is asked, how lists and logs are bounded, and what it refuses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kubernetes.client import Configuration
from tests.operator.cluster.test_real import ApiServer, server

from mizzen_operator.cluster.failures import NotFoundError, UnauthorizedError
from mizzen_operator.cluster.reader import ForbiddenReadError, HttpReader, LogPart, Selection
from mizzen_operator.errors import RejectedError
from mizzen_operator.store import POD, SECRET, ObjectRef

__all__ = ["server"]
PART = LogPart(container="mizzen", tail_lines=10, max_bytes=99)
POD_REF = ObjectRef(kind=POD, namespace="ns", name="p")


def read(api: ApiServer, act: Callable[[HttpReader], Coroutine[Any, Any, Any]]) -> Any:
    configuration = Configuration(host=f"http://127.0.0.1:{api.port}")
    reader = HttpReader(configuration, user_agent="mizzen/test")
    try:
        return asyncio.run(act(reader))
    finally:
        reader.close()


def page(*names: str, more: str = "") -> dict[str, Any]:
    items = [{"metadata": {"name": name}} for name in names]
    return {"metadata": {"continue": more, "resourceVersion": "1"}, "items": items}


def test_a_list_is_read_in_chunks_and_its_items_say_what_they_are(server: ApiServer) -> None:
    server.answer(200, page("a", more="next"))
    server.answer(200, page("b"))
    selection = Selection(namespace="ns", label_selector="x", field_selector="type=Warning")
    listed = read(server, lambda reader: reader.list_objects(POD, selection))
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "b"]
    assert {(item["apiVersion"], item["kind"]) for item in listed.items} == {("v1", "Pod")}
    assert not listed.is_cut
    query = "limit=500&labelSelector=x&fieldSelector=type%3DWarning"
    path = "/api/v1/namespaces/ns/pods"
    assert [seen.path for seen in server.seen] == [
        f"{path}?{query}",
        f"{path}?{query}&continue=next",
    ]
    assert {seen.method for seen in server.seen} == {"GET"}


def test_a_list_that_is_too_long_is_cut_and_says_so(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mizzen_operator.cluster.reader.MAX_ITEMS", 2)
    server.answer(200, page("a", "b", more="next"))
    selection = Selection(namespace=None)
    listed = read(server, lambda reader: reader.list_objects(POD, selection))
    assert listed.is_cut
    assert server.seen[0].path == "/api/v1/pods?limit=500"


def test_a_log_is_text_of_bounded_length(server: ApiServer) -> None:
    server.answer(200, b"12\n\xff\n")
    assert read(server, lambda reader: reader.pod_log(POD_REF, PART)) == "12\n\ufffd\n"
    assert server.seen[0].path == (
        "/api/v1/namespaces/ns/pods/p/log?container=mizzen&tailLines=10&limitBytes=99"
    )


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (
            400,
            {"message": "container is waiting", "reason": "BadRequest"},
            RejectedError,
            "waiting",
        ),
        (404, b"no such page", NotFoundError, "no such page"),
        (401, {"message": "Unauthorized"}, UnauthorizedError, "HTTP 401"),
    ],
)
def test_a_log_that_is_refused_says_why(
    status: int, body: Any, error: type[Exception], words: str, server: ApiServer
) -> None:
    server.answer(status, body)
    with pytest.raises(error, match=words):
        read(server, lambda reader: reader.pod_log(POD_REF, PART))


def test_secrets_are_not_asked_for(server: ApiServer) -> None:
    ref = ObjectRef(kind=SECRET, namespace="ns", name="s")
    with pytest.raises(ForbiddenReadError):
        read(server, lambda reader: reader.get(ref))
    with pytest.raises(ForbiddenReadError):
        read(server, lambda reader: reader.list_objects(SECRET, Selection(namespace="ns")))
    assert server.seen == []


def test_what_only_reads_cannot_write(server: ApiServer) -> None:
    with pytest.raises(ForbiddenReadError):
        read(server, lambda reader: reader._client.create(POD_REF, {"metadata": {}}))
    assert server.seen == []
