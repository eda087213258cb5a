import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kubernetes.client import Configuration

from mizzen_operator.cluster.watch_pulse import WatchPulse, WatchTiming
from mizzen_operator.handlers import (
    WatchScope,
    connection_info,
    watch_listener,
    watch_registry,
    watch_settings,
)
from mizzen_operator.spec.model import GROUP
from mizzen_operator.store import (
    CHILD_SELECTOR,
    LISTED_KINDS,
    OPTIONAL_KINDS,
    POD,
    SERVICE_KIND,
    WATCHED_KINDS,
    ResourceKind,
)


def registry() -> kopf.OperatorRegistry:
    return watch_registry(lambda kind, event, manifest: None, Configuration, listener())


def listener(
    pulse: WatchPulse | None = None, lists: list[ResourceKind] | None = None
) -> aiohttp.ClientMiddlewareType:
    return watch_listener(
        pulse or WatchPulse(WatchTiming(), clock=time.monotonic),
        [].append if lists is None else lists.append,
        WatchScope(),
    )


def test_every_watched_kind_has_one_raw_event_handler_and_nothing_else() -> None:
    found = registry()
    assert [handler.id for handler in found._watching.get_all_handlers()] == [
        kind.plural for kind in WATCHED_KINDS
    ]
    for banned in (found._changing, found._spawning, found._indexing, found._webhooks):
        assert list(banned.get_all_handlers()) == []


def test_row_21_kopf_has_nothing_to_write() -> None:
    settings = watch_settings(WatchTiming())
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert settings.persistence.finalizer == f"{GROUP}/never-used"


def test_kopf_copies_no_object_to_compare_it() -> None:
    storage = watch_settings(WatchTiming()).persistence.diffbase_storage
    body = kopf.Body({"metadata": {}, "spec": {"a": [1]}})
    assert storage.fetch(body=body) is None
    assert storage.build(body=body) == {}


def test_row_67_only_services_are_watched_without_a_label_selector() -> None:
    selectors = watch_settings(WatchTiming()).watching.label_selectors
    assert len(selectors) == len(WATCHED_KINDS) - 1
    assert set(selectors.values()) == {CHILD_SELECTOR}
    assert SERVICE_KIND in WATCHED_KINDS


def test_optional_kinds_are_not_watched() -> None:
    # kopf looks for kinds once, and one that is installed later would never be found.
    assert OPTIONAL_KINDS
    assert not set(OPTIONAL_KINDS) & set(WATCHED_KINDS)
    assert set(LISTED_KINDS) == {*OPTIONAL_KINDS, *WATCHED_KINDS}


def test_credentials_reach_kopf() -> None:
    configuration = Configuration(host="https://api:6443")
    configuration.api_key["BearerToken"] = "Bearer abc"
    configuration.ssl_ca_cert = "/ca.crt"
    info = connection_info(configuration)
    assert (info.server, info.scheme, info.token) == ("https://api:6443", "Bearer", "abc")
    assert info.ca_path == "/ca.crt"
    configuration.api_key["BearerToken"] = "abc"
    assert connection_info(configuration).token == "abc"


def test_events_are_forwarded_as_they_are() -> None:
    seen = []
    found = watch_registry(lambda *news: seen.append(news), Configuration, listener())
    handler = next(iter(found._watching.get_all_handlers()))
    forward = handler.fn(event={"type": None, "object": {"a": 1}})
    with contextlib.suppress(StopIteration):
        forward.send(None)
    assert seen == [(SERVICE_KIND, "", {"a": 1})]


def test_kopf_never_gives_up_a_request_by_itself() -> None:
    backoffs = watch_settings(WatchTiming()).networking.error_backoffs
    for _ in range(2):  # each request begins anew
        assert max(itertools.islice(iter(backoffs), 1000)) <= 5


def test_credentials_that_were_refused_are_known_again() -> None:
    """kopf asks for others; if it gets the same it ends, instead of trying them for ever."""

    async def log_in_twice() -> bool:
        handler = next(iter(registry()._activities.get_all_handlers()))
        first, second = await handler.fn(), await handler.fn()
        for session in (first, second):
            await session.aiohttp_session.close()
        return first == second

    assert asyncio.run(log_in_twice())


@contextlib.asynccontextmanager
async def api_server(handlers: dict[ResourceKind, Any]) -> AsyncIterator[str]:
    """Its address; it lies below a path of its own."""
    app = web.Application()
    for kind, handler in handlers.items():
        app.router.add_get("/below" + kind.path(namespace=None), handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/below"
    await runner.cleanup()


async def refuse(request: web.Request) -> web.Response:
    return web.Response(status=500, text="no")


class RealSession:
    """A watch of pods over HTTP, whose stream is held open until `go_on`; services are refused."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pulse = WatchPulse(WatchTiming(), clock=lambda: self.now_s)
        self.pulse.expect((POD, SERVICE_KIND))
        self.go_on = asyncio.Event()
        self.is_broken = False

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{}\n")
        await self.go_on.wait()
        if self.is_broken:
            assert request.transport is not None
            request.transport.abort()
        return response

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[aiohttp.ClientResponse]:
        async with (
            api_server({POD: self.stream, SERVICE_KIND: refuse}) as address,
            aiohttp.ClientSession(middlewares=(listener(self.pulse),)) as session,
        ):
            async with session.get(address + SERVICE_KIND.path(namespace=None)) as refused:
                await refused.read()
            async with session.get(address + POD.path(namespace=None)) as response:
                yield response

    def silence_s(self) -> tuple[float, float]:
        """Of pods and services."""
        self.pulse.listen()
        found = self.pulse.silence_s()
        return found[POD], found[SERVICE_KIND]


def test_the_pulse_hears_bytes_and_the_end_in_order_of_a_real_session() -> None:
    async def hear() -> None:
        world = RealSession()
        async with world.watch() as response:
            await response.content.readline()
            world.now_s = 10.0
            assert world.silence_s() == (0, 10)
            world.now_s = 20.0
            assert world.silence_s() == (10, 20)
            world.go_on.set()
            assert await response.content.read() == b""
        # By now kopf has closed the response.
        assert world.silence_s() == (0, 20)

    asyncio.run(hear())


def test_the_pulse_takes_a_broken_stream_for_no_sign() -> None:
    async def hear() -> None:
        world = RealSession()
        world.is_broken = True
        async with world.watch() as response:
            await response.content.readline()
            world.now_s = 10.0
            assert world.silence_s() == (0, 10)
            world.now_s = 20.0
            world.go_on.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
        assert world.silence_s() == (10, 20)

    asyncio.run(hear())


def test_a_watch_that_begins_anew_is_told_by_its_list() -> None:
    """By the first part of one that succeeds, not by the stream that follows."""

    async def accept(request: web.Request) -> web.Response:
        return web.Response(text="{}")

    async def ask() -> list[ResourceKind]:
        lists: list[ResourceKind] = []
        async with (
            api_server({POD: accept, SERVICE_KIND: refuse}) as address,
            aiohttp.ClientSession(middlewares=(listener(lists=lists),)) as session,
        ):
            for kind in (POD, SERVICE_KIND):
                for query in ("limit=5", "limit=5&continue=x", "watch=true"):
                    url = f"{address}{kind.path(namespace=None)}?{query}"
                    async with session.get(url) as response:
                        await response.read()
        return lists

    assert asyncio.run(ask()) == [POD]
