"""Proxies, redirects and names of hosts."""

import pytest
from tests.worker.fetch import hub_server
from tests.worker.fetch.faulty_server import Reply, serving
from tests.worker.fetch.hub_server import hub_with
from tests.worker.fetch.small_model import Fetcher

from mizzen_worker.config.env import read_fetch_environment
from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.fetch.http_client import (
    HttpClient,
    HttpRequest,
    _needs_no_proxy,
    _require_redirect,
    asked_delay_s,
    show_url,
)


def test_a_proxy_is_asked_but_for_hosts_that_need_none(
    fetcher: Fetcher, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub names itself in links to further pages, and here goes by another name.
    monkeypatch.setattr(hub_server, "PAGE_SIZE", 100)
    with hub_with(files) as hub, serving(hub.answer) as proxy:
        fetcher.environment |= {
            "HF_ENDPOINT": "http://hub.invalid",
            "http_proxy": proxy.url,
            "NO_PROXY": "127.0.0.1",
        }
        assert fetcher.fetch("hf://org/tiny").status == 0
        assert {request.headers["host"] for request in proxy.requests} == {"hub.invalid"}
        assert hub.content.requests
        assert not hub.api.requests


@pytest.mark.parametrize(
    ("host", "exceptions", "needs_none"),
    [
        ("a.example.com", "", False),
        ("a.example.com", "example.com", True),
        ("a.example.com", " other, .example.com", True),
        ("a.example.com", "*.example.com", True),
        ("badexample.com", "example.com", False),
        ("anything", "*", True),
    ],
)
def test_hosts_that_need_no_proxy(host: str, exceptions: str, *, needs_none: bool) -> None:
    assert _needs_no_proxy(host, exceptions) == needs_none


@pytest.mark.parametrize(
    ("url", "target", "is_followed"),
    [
        ("https://a/x", "https://b/y", True),
        ("http://a/x", "http://b/y", True),
        ("http://a/x", "https://b/y", True),
        ("https://a/x", "http://a/y", False),
        ("http://a/x", "file:///etc/passwd", False),
    ],
)
def test_redirects_lose_no_encryption(url: str, target: str, *, is_followed: bool) -> None:
    if is_followed:
        _require_redirect(url, target)
        return
    with pytest.raises(FetchError, match="not followed"):
        _require_redirect(url, target)


def test_messages_show_no_query_and_no_user() -> None:
    assert show_url("https://u:p@host:1/a/b?signature=s#f") == "https://host:1/a/b"


def test_the_environment_shows_no_secret() -> None:
    secrets = {
        "HF_TOKEN": "secret-1 \n",
        "AWS_SECRET_ACCESS_KEY": "secret-2",
        "AWS_SESSION_TOKEN": "secret-3",
        "OCI_PASSWORD": "secret-4",
        "HTTPS_PROXY": "http://user:secret-5@proxy",
    }
    environment = read_fetch_environment(secrets)
    assert environment.hf_token == "secret-1"
    assert "secret" not in repr(environment)


def test_a_document_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mizzen_worker.fetch.http_client.MAX_DOCUMENT_BYTES", 100)
    with serving(lambda _: Reply(body=b"[" * 101)) as server:
        client = HttpClient(proxies={}, num_threads=1)
        with (
            client.open(HttpRequest(url=f"{server.url}/x")) as answer,
            pytest.raises(FetchError, match="more than 100 bytes"),
        ):
            answer.json()
        client.close()


@pytest.mark.parametrize(
    ("headers", "delay_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "soon"}, None),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:00:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            0,
        ),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
    ],
)
def test_how_long_it_asks_to_be_left_alone(headers: dict[str, str], delay_s: float | None) -> None:
    assert asked_delay_s(headers) == delay_s
