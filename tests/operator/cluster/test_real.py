"""The HTTP client against a small server of this process: what is sent, what an answer becomes."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration

from mizzen_operator.cluster.client import CallRecord, FieldManager, Precondition, Subresource
from mizzen_operator.cluster.failures import LeadershipLostError, NotFoundError
from mizzen_operator.cluster.real import ConnectionLimits, KubernetesClient
from mizzen_operator.errors import (
    ConflictError,
    ForbiddenError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from mizzen_operator.store import (
    CONTROLLER_REVISION,
    POD,
    SECRET,
    SERVICE_KIND,
    ObjectRef,
    ObjectUid,
    kind_named,
)

REF = ObjectRef(kind=SERVICE_KIND, namespace="ns", name="chat")
SECRET_REF = ObjectRef(kind=SECRET, namespace="ns", name="chat-curve")
PATH = "/apis/serving.mizzen.dev/v1alpha1/namespaces/ns/inferenceservices/chat"


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class ApiServer:
    """Answers with what is queued, remembers what was asked."""

    answers: list[tuple[int, Any, dict[str, str]]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    def answer(self, status: int, body: Any, **headers: str) -> None:
        self.answers.append((status, body, headers))

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                is_yaml = self.headers.get("Content-Type", "").endswith("yaml")
                document = (yaml.safe_load if is_yaml else json.loads)(body) if body else None
                server.seen.append(Seen(self.command, self.path, dict(self.headers), document))
                status, answer, headers = server.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815 - inherited

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler


@pytest.fixture
def server() -> Iterator[ApiServer]:
    api = ApiServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), api.handler())
    http.daemon_threads = True
    api.port = int(http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield api
    http.shutdown()
    http.server_close()
    thread.join()


def run(
    server: ApiServer,
    act: Callable[[KubernetesClient], Awaitable[Any]],
    *,
    fence: Callable[[], None] = lambda: None,
    calls: list[CallRecord] | None = None,
) -> Any:
    configuration = Configuration(host=f"http://127.0.0.1:{server.port}")
    configuration.api_key["authorization"] = "Bearer secret-token"
    client = KubernetesClient(
        configuration,
        user_agent="mizzen-operator/test",
        fence=fence,
        observer=(calls if calls is not None else []).append,
        limits=ConnectionLimits(connect_timeout_s=1, read_timeout_s=1, list_chunk=2),
    )
    try:
        return asyncio.run(_await(act(client)))
    finally:
        client.close()


async def _await(doing: Awaitable[Any]) -> Any:
    return await doing


def pod(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"p{number}", "namespace": "ns", "uid": f"u{number}",
            "resourceVersion": str(number),
        }
    }  # fmt: skip


def test_a_list_is_read_in_chunks_as_metadata_only(server: ApiServer) -> None:
    server.answer(200, {"metadata": {"resourceVersion": "9", "continue": "t"},
                        "items": [pod(1), pod(2)]})  # fmt: skip
    server.answer(200, {"metadata": {"resourceVersion": "9"}, "items": None})
    listed = run(
        server, lambda client: client.list_versions(POD, namespace=None, label_selector="a/b")
    )
    assert [item.uid for item in listed.items] == ["u1", "u2"]
    assert listed.list_version == 9
    first, second = server.seen
    assert first.path == "/api/v1/pods?limit=2&labelSelector=a%2Fb"
    assert second.path.endswith("&continue=t")
    assert "as=PartialObjectMetadataList" in first.headers["Accept"]
    assert first.headers["User-Agent"] == "mizzen-operator/test"


def test_an_apply_names_the_uid_and_its_manager(server: ApiServer) -> None:
    server.answer(200, {"metadata": {}})
    run(
        server,
        lambda client: client.apply(
            REF,
            {"metadata": {"name": "chat"}, "status": {"a": 1}},
            manager=FieldManager.STATUS,
            precondition=Precondition(uid=ObjectUid("u1"), resource_version=7),
            subresource=Subresource.STATUS,
        ),
    )
    (seen,) = server.seen
    assert (seen.method, seen.path) == (
        "PATCH", f"{PATH}/status?fieldManager=mizzen-status&force=true",
    )  # fmt: skip
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.body["metadata"] == {"name": "chat", "uid": "u1", "resourceVersion": "7"}


def test_a_dry_run_of_a_creation_is_strict_and_stores_nothing(server: ApiServer) -> None:
    server.answer(201, {"metadata": {}})
    calls: list[CallRecord] = []
    run(server, lambda client: client.try_create(REF, {"spec": {"a": 1}}), calls=calls)
    (seen,) = server.seen
    path, _, query = seen.path.partition("?")
    assert (seen.method, path) == ("POST", PATH.rpartition("/")[0])
    assert query == "fieldManager=mizzen-controller&dryRun=All&fieldValidation=Strict"
    assert seen.body == {"spec": {"a": 1}}
    assert [call.verb for call in calls] == ["dry-run"]
    # By it the operator knows what time it is.
    assert "GMT" in str(calls[0].date)


def test_a_dry_run_of_an_apply_names_the_uid_and_stores_nothing(server: ApiServer) -> None:
    server.answer(200, {"metadata": {}})
    precondition = Precondition(uid=ObjectUid("u1"))
    run(server, lambda client: client.try_apply(REF, {"metadata": {"name": "chat"}}, precondition))
    (seen,) = server.seen
    assert (seen.method, seen.path) == (
        "PATCH", f"{PATH}?fieldManager=mizzen-controller&force=true&dryRun=All",
    )  # fmt: skip
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.body["metadata"] == {"name": "chat", "uid": "u1"}


def test_without_the_lease_no_dry_run_is_sent(server: ApiServer) -> None:
    def fence() -> None:
        raise LeadershipLostError("lost")

    with pytest.raises(LeadershipLostError):
        run(server, lambda client: client.try_create(REF, {}), fence=fence)
    assert server.seen == []


def test_a_refusal_names_the_fields_it_is_about(server: ApiServer) -> None:
    causes = [{"field": "spec.a", "message": "no"}, {"message": "without"}]
    server.answer(422, {"message": "because", "details": {"causes": causes}})
    with pytest.raises(RejectedError) as caught:
        run(server, lambda client: client.try_create(REF, {}))
    assert (caught.value.said, caught.value.fields) == ("because", ("spec.a",))


def test_ownership_is_written_at_one_version_and_nothing_else(server: ApiServer) -> None:
    server.answer(200, {"metadata": {}})
    fields = [{"manager": "mizzen-controller", "operation": "Apply"}]
    precondition = Precondition(uid=ObjectUid("u1"), resource_version=7)
    run(server, lambda client: client.own(REF, fields, precondition))
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("PATCH", f"{PATH}?fieldManager=mizzen-controller")
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"metadata": {"uid": "u1", "resourceVersion": "7", "managedFields": fields}}


def test_a_part_of_a_status_is_replaced_at_one_version(server: ApiServer) -> None:
    server.answer(200, {"metadata": {}})
    precondition = Precondition(uid=ObjectUid("u1"), resource_version=7)
    run(server, lambda client: client.replace_in_status(REF, {"a": [1]}, precondition))
    (seen,) = server.seen
    assert seen.path == f"{PATH}/status?fieldManager=mizzen-status"
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"metadata": {"uid": "u1", "resourceVersion": "7"}, "status": {"a": [1]}}


def test_a_secret_answers_with_metadata_only(server: ApiServer) -> None:
    server.answer(201, {"metadata": {"uid": "u1"}})
    server.answer(200, {"metadata": {"uid": "u1"}})
    server.answer(200, {"kind": "Status"})
    run(server, lambda client: client.create_unread(SECRET_REF, {"data": {"k": "v"}}))
    run(server, lambda client: client.touch_unread(SECRET_REF, uid=ObjectUid("u1")))
    run(server, lambda client: client.delete(SECRET_REF, Precondition(uid=ObjectUid("u1"))))
    for seen in server.seen:
        assert "as=PartialObjectMetadata;" in seen.headers["Accept"]
    assert server.seen[1].body == {"metadata": {"uid": "u1"}}
    assert server.seen[1].headers["Content-Type"] == "application/merge-patch+json"


def test_json_without_a_schema_is_sent_as_yaml(server: ApiServer) -> None:
    """Else the API server keeps blanks of ours, which a later patch of the object would change."""
    server.answer(201, {"metadata": {"uid": "u1"}})
    ref = ObjectRef(kind=CONTROLLER_REVISION, namespace="ns", name="chat-abcdef")
    strings = ["\U0001f600", "\u00e9", "a\tb\u2028\x7f", "yes", "1e3", "\\ud83d", "<&>", "\ufffe"]
    manifest = {"kind": "ControllerRevision", "data": {"spec": {"args": strings}}, "revision": 3}
    run(server, lambda client: client.create(ref, manifest))
    (seen,) = server.seen
    assert seen.headers["Content-Type"] == "application/yaml"
    assert seen.path.startswith("/apis/apps/v1/namespaces/ns/controllerrevisions?")
    assert seen.body == manifest


def test_a_deletion_carries_its_preconditions(server: ApiServer) -> None:
    server.answer(200, {"kind": "Status"})
    server.answer(200, {"kind": "InferenceService", "metadata": {}})
    precondition = Precondition(uid=ObjectUid("u1"), resource_version=7)
    assert run(server, lambda client: client.delete(REF, precondition)) is None
    assert run(server, lambda client: client.delete(REF, precondition)) is not None
    assert server.seen[0].body["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert server.seen[0].body["propagationPolicy"] == "Background"


def test_a_group_is_deleted_so_that_it_outlasts_its_pods(server: ApiServer) -> None:
    server.answer(200, {"kind": "StatefulSet", "metadata": {"deletionTimestamp": "now"}})
    ref = replace(REF, kind=kind_named("apps/v1", "StatefulSet"))
    precondition = Precondition(uid=ObjectUid("u1"), resource_version=None)
    assert run(server, lambda client: client.delete(ref, precondition)) is not None
    assert server.seen[0].body["propagationPolicy"] == "Foreground"


def test_a_pod_is_gone_only_when_nothing_grants_it_time(server: ApiServer) -> None:
    ref = replace(REF, kind=POD)
    precondition = Precondition(uid=ObjectUid("u1"), resource_version=7)
    for grace_s, finalizers, is_gone in ((10, [], False), (0, [], True), (0, ["x"], False)):
        metadata = {"deletionGracePeriodSeconds": grace_s, "finalizers": finalizers}
        server.answer(200, {"kind": "Pod", "metadata": metadata})

        async def delete(client: Any, seconds: int = grace_s) -> Any:
            return await client.delete(ref, precondition, grace_s=seconds)

        assert (run(server, delete) is None) is is_gone
        assert server.seen[-1].body["gracePeriodSeconds"] == grace_s
    assert server.seen[-1].body["preconditions"] == {"uid": "u1", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RejectedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, ConflictError),
        (422, RejectedError),
        (429, ThrottledError),
        (500, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_a_refusal_becomes_a_typed_error_that_says_what_was_asked(
    server: ApiServer, status: int, error: type[Exception]
) -> None:
    server.answer(status, {"kind": "Status", "reason": "Why", "message": "because"})
    with pytest.raises(error, match=f"get {PATH}: because .HTTP {status} Why."):
        run(server, lambda client: client.get(REF))


def test_an_apply_of_another_form_is_refused_although_the_server_calls_it_its_own_fault(
    server: ApiServer,
) -> None:
    said = "failed to create typed patch object (a/b): .spec.x: field not declared in schema"
    server.answer(500, {"kind": "Status", "reason": "", "message": said})
    with pytest.raises(RejectedError) as caught:
        run(server, lambda client: client.get(REF))
    assert caught.value.said == said


@pytest.mark.parametrize(
    ("status", "header", "wait_s"), [(429, "7", 7.0), (503, "3", 3.0), (429, "soon", 1.0)]
)
def test_the_server_says_how_long_to_wait(
    server: ApiServer, status: int, header: str, wait_s: float
) -> None:
    server.answer(status, {"message": "busy"}, Retry_After=header)
    with pytest.raises(ThrottledError) as caught:
        run(server, lambda client: client.get(REF))
    assert caught.value.retry_after_s == wait_s


def test_an_answer_that_is_no_json_is_no_answer(server: ApiServer) -> None:
    server.answer(200, b"<html>proxy</html>")
    with pytest.raises(UnavailableError, match="<html>proxy"):
        run(server, lambda client: client.get(REF))


def test_a_kind_that_does_not_exist_answers_in_plain_text(server: ApiServer) -> None:
    server.answer(404, b"404 page not found\n")
    with pytest.raises(NotFoundError, match=r"404 page not found .HTTP 404"):
        run(server, lambda client: client.get(REF))


def test_nobody_listening_is_unavailable_and_counted() -> None:
    calls: list[CallRecord] = []
    with pytest.raises(UnavailableError, match="no answer from"):
        run(ApiServer(port=1), lambda client: client.get(REF), calls=calls)
    assert [(call.verb, call.status, call.date) for call in calls] == [("get", 0, None)]


def test_without_the_lease_nothing_is_written_but_reads_go_on(server: ApiServer) -> None:
    def fence() -> None:
        raise LeadershipLostError("lost")

    server.answer(200, {"metadata": {}})
    run(server, lambda client: client.get(REF), fence=fence)
    with pytest.raises(LeadershipLostError):
        run(server, lambda client: client.create(REF, {}), fence=fence)
    assert len(server.seen) == 1


def test_the_token_is_sent_and_never_told(server: ApiServer) -> None:
    server.answer(403, {"message": "no"})
    with pytest.raises(ForbiddenError) as caught:
        run(server, lambda client: client.get(REF))
    assert server.seen[0].headers["authorization"] == "Bearer secret-token"
    assert "secret-token" not in str(caught.value)
