"""Servers that answer something else than what they were asked for."""

import base64
import json
from collections.abc import Iterator, Mapping

import pytest
from tests.worker.fetch.faulty_server import Fault, Reply, Request, serving
from tests.worker.fetch.hub_server import Hub, hub_with
from tests.worker.fetch.registry_server import PASSWORD, USER, registry_with
from tests.worker.fetch.small_model import Fetcher, Outcome, read_folder

LARGE = "model-00001-of-00002.safetensors"


@pytest.fixture
def hub(files: dict[str, bytes], fetcher: Fetcher) -> Iterator[Hub]:
    with hub_with(files) as found:
        fetcher.environment["HF_ENDPOINT"] = found.api.url
        yield found


@pytest.mark.parametrize(
    "odd",
    [
        Reply(status=416),
        Reply(status=206, body=b"x" * 9, headers={"Content-Range": "bytes 5-13/300000"}),
        Reply(status=206, body=b"x" * 9, headers={"Content-Range": "bytes 100000-100008/7"}),
        Reply(status=206, body=b"x" * 9),
    ],
    ids=["no such range", "another start", "another size", "no range named"],
)
def test_another_part_than_asked_for_begins_anew(
    hub: Hub, fetcher: Fetcher, files: dict[str, bytes], odd: Reply
) -> None:
    hub.content.faults += [Fault(LARGE, cut_after=100_000), Fault(LARGE, reply=odd)]
    assert fetcher.fetch("hf://org/tiny").status == 0
    assert read_folder(fetcher.folder / "tiny") == files


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/revision/", b"<html>", "something else than JSON"),
        ("/revision/", b"[]", "names no commit"),
        ("/revision/", b'{"sha": "main"}', "names no commit"),
        ("/tree/", b"{}", "lists no files"),
        ("/tree/", b'[{"type": "file"}]', "without path, size or hash"),
    ],
)
def test_a_hub_that_is_none(
    hub: Hub, fetcher: Fetcher, path: str, body: bytes, sentence: str
) -> None:
    hub.api.faults.append(Fault(path, reply=Reply(body=body)))
    _check(fetcher.fetch("hf://org/tiny"), sentence)


def test_a_redirect_to_no_address(hub: Hub, fetcher: Fetcher) -> None:
    odd = Reply(status=302, headers={"Location": "http://[x"})
    hub.api.faults.append(Fault("/resolve/", reply=odd))
    _check(fetcher.fetch("hf://org/tiny"), "no address")


def test_a_list_that_goes_on_elsewhere(hub: Hub, fetcher: Fetcher) -> None:
    link = {"Link": '<http://elsewhere.invalid/x>; rel="next"'}
    hub.api.faults.append(Fault("/tree/", reply=Reply(body=b"[]", headers=link)))
    _check(fetcher.fetch("hf://org/tiny"), "goes on at another host")


def test_a_list_without_end(hub: Hub, fetcher: Fetcher) -> None:
    again = Reply(body=b"[]", headers={"Link": '<?again=1>; rel="next"'})
    entries = [{"type": "directory", "path": str(number)} for number in range(5000)]
    again.body = json.dumps(entries).encode()
    hub.api.faults.append(Fault("/tree/", times=99, reply=again))
    _check(fetcher.fetch("hf://org/tiny"), "more than 10000 files")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hf://a/b", "--hf-endpoint", "ftp://x"], "HF_ENDPOINT"),
        (["s3://bucket/b", "--s3-endpoint", "x"], "AWS_ENDPOINT_URL"),
        (["s3://bucket/b", "--s3-endpoint", "http://x/path"], "AWS_ENDPOINT_URL"),
        (["hf://a/b", "--hf-endpoint", "http://"], "no address"),
        (["hf://a/b", "--hf-endpoint", "http://[x"], "no address"),
    ],
)
def test_an_address_that_is_none(fetcher: Fetcher, arguments: list[str], sentence: str) -> None:
    _check(fetcher.run("--to", str(fetcher.folder), *arguments), sentence)


def test_a_bucket_in_another_region_is_told(fetcher: Fetcher) -> None:
    elsewhere = Reply(status=301, headers={"x-amz-bucket-region": "eu-west-1"})
    with serving(lambda _: elsewhere) as server:
        outcome = fetcher.fetch("s3://bucket/m", "--s3-endpoint", server.url)
    _check(outcome, "is in region eu-west-1; set AWS_REGION to it")


def test_a_session_token_is_sent_and_signed(fetcher: Fetcher) -> None:
    fetcher.environment |= {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "session",
    }
    denied = b"<Error><Code>AccessDenied</Code><Message>Not secret, session</Message></Error>"
    with serving(lambda _: Reply(status=403, body=denied)) as server:
        outcome = fetcher.fetch("s3://bucket/m", "--s3-endpoint", server.url)
        (request,) = server.requests
    assert request.headers["x-amz-security-token"] == "session"
    assert "x-amz-security-token" in request.headers["authorization"]
    assert outcome.reason == "Unauthorized"
    assert "AccessDenied: Not ***, ***" in outcome.message


def _challenging(challenge: str, answer: Mapping[str, Reply], authorization: str):
    """A registry that lets in who shows ``authorization``."""

    def route(request: Request) -> Reply:
        if request.path in answer:
            return answer[request.path]
        if request.headers.get("authorization") == authorization:
            return Reply(status=404, body=b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        return Reply(status=401, headers={"WWW-Authenticate": challenge})

    return route


def test_a_registry_that_wants_a_password(fetcher: Fetcher) -> None:
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    with serving(_challenging('Basic realm="r"', {}, f"Basic {pair}")) as server:
        outcome = fetcher.fetch(f"oci://{server.host}/a:v")
        assert outcome.reason == "Unauthorized"
        assert "give credentials that may read it in OCI_USERNAME" in outcome.message
        fetcher.environment |= {"OCI_USERNAME": USER, "OCI_PASSWORD": "wrong"}
        outcome = fetcher.fetch(f"oci://{server.host}/a:v")
        assert outcome.reason == "Unauthorized"
        assert "OCI_PASSWORD may not read it" in outcome.message
        fetcher.environment["OCI_PASSWORD"] = PASSWORD
        assert fetcher.fetch(f"oci://{server.host}/a:v").reason == "NotFound"


@pytest.mark.parametrize("challenge", ["", "Negotiate", 'Bearer realm="ftp://x"'])
def test_a_registry_that_wants_what_we_have_not(fetcher: Fetcher, challenge: str) -> None:
    with serving(_challenging(challenge, {}, "")) as server:
        outcome = fetcher.fetch(f"oci://{server.host}/a:v")
    assert (outcome.status, outcome.reason) == (1, "Unauthorized")
    assert "of an unknown kind" in outcome.message


def test_a_registry_that_gives_no_token(fetcher: Fetcher) -> None:
    with registry_with() as registry:
        registry.is_private = True
        registry.server.faults.append(Fault("/token", reply=Reply(body=b'{"token": 7}')))
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "Unauthorized")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"layers": 7}'])
def test_a_manifest_that_is_none(fetcher: Fetcher, body: bytes) -> None:
    with serving(lambda _: Reply(body=body)) as server:
        _check(fetcher.fetch(f"oci://{server.host}/a:v"), "manifest")


def _check(outcome: Outcome, sentence: str) -> None:
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert sentence in outcome.message
