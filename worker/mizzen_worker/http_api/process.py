"""Owns the front process: HTTP server, TokenizerManager and their connections, in one event loop.

Owns no decision. Started by the launcher with its whole configuration; imports no torch.
"""

import asyncio
import contextlib
import gc
import logging
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from mizzen_worker.contracts.ids import InstanceId, TokenId
from mizzen_worker.contracts.messages import Control
from mizzen_worker.http_api.access import AccessKeys, read_access_keys
from mizzen_worker.http_api.app import create_app
from mizzen_worker.http_api.engine import FrontEngine, HttpLimits
from mizzen_worker.http_api.front_control import FrontControl
from mizzen_worker.http_api.front_settings import FrontSettings
from mizzen_worker.http_api.server import Server, make_server
from mizzen_worker.ipc.child_process import run_child
from mizzen_worker.ipc.connection import WorkerConnection
from mizzen_worker.ipc.curve import read_client_keys
from mizzen_worker.ipc.launcher_client import LauncherClient
from mizzen_worker.ipc.parent_link import Drain, ParentLink, Report, Wishes
from mizzen_worker.ipc.pool import ConnectionSet, WorkerPool
from mizzen_worker.ipc.zmq_link import ZmqLinks
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.observability.tracing import make_tracer
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.chat_template import ChatTemplate
from mizzen_worker.tokenizer.encode import TextEncoder
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.text_channel import LinkTextChannel
from mizzen_worker.vocabulary.load import Vocabulary, load_vocabulary
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

logger = logging.getLogger(__name__)

_WORKER_WAIT_S = 10.0
_REPORT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What was read before the event loop began."""

    vocabulary: Vocabulary
    keys: AccessKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """What the parts of the process share."""

    manager: TokenizerManager
    engine: FrontEngine
    pool: WorkerPool
    texts: LinkTextChannel
    control: FrontControl


def main() -> None:
    """Run the process."""
    run_child("front", FrontSettings, _run)


def _run(settings: FrontSettings, link: ParentLink, wishes: Wishes) -> None:
    http = settings.http
    keys = read_access_keys(http.api_key_file, http.admin_key_file)
    listener = socket.socket(fileno=settings.http_fd)
    link.report(Report(state="starting", num_beats=0))
    loaded = _Loaded(
        vocabulary=load_vocabulary(Path(settings.model), is_skipped=settings.skip_tokenizer),
        keys=keys,
    )
    uvloop.run(_serve(settings, loaded, listener, link, wishes))


async def _serve(
    settings: FrontSettings,
    loaded: _Loaded,
    listener: socket.socket,
    link: ParentLink,
    wishes: Wishes,
) -> None:
    front = _build(settings, loaded)
    server = make_server(create_app(front.engine), grace_s=3)
    host, port = listener.getsockname()[:2]
    tasks = [
        asyncio.create_task(front.pool.run()),
        asyncio.create_task(front.texts.run(front.manager)),
        asyncio.create_task(front.manager.run()),
        asyncio.create_task(_report(front, link, wishes, server, f"{host} {port}")),
    ]
    # What a front holds for good is no garbage; without a look at it, a big body stalls the loop
    # half as long.
    gc.collect()
    gc.freeze()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            logger.error("front process fails", exc_info=task.exception())
            raise SystemExit(1)
    await serving
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if front.engine.tracer is not None:
        front.engine.tracer.close()


def _build(settings: FrontSettings, loaded: _Loaded) -> _Front:
    vocabulary = loaded.vocabulary
    recorder = Recorder("front")
    keys = read_client_keys(Path(settings.curve_dir)) if settings.curve_dir is not None else None
    links = ZmqLinks(keys=keys)
    texts = LinkTextChannel(settings.detokenizer, open_link=ZmqLinks().open_link)
    connections = ConnectionSet()
    manager = TokenizerManager(
        workers=Workers(tokenizer_fingerprint=vocabulary.fingerprint),
        send=connections.send,
        texts=texts,
        recorder=recorder,
        clock=time.monotonic,
        settings=ManagerSettings(
            max_live_requests=settings.http.max_live_requests,
            resume_timeout_s=settings.http.resume_timeout_s,
            end_ids=frozenset(TokenId(index) for index in vocabulary.end_ids),
        ),
    )

    def connect(address: str) -> WorkerConnection:
        return WorkerConnection(
            address,
            open_link=links.open_link,
            instance_id=InstanceId(settings.instance_id),
            listener=manager,
            clock=time.monotonic,
        )

    pool = WorkerPool(names=settings.workers, connect=connect, connections=connections)
    template = (
        ChatTemplate(
            vocabulary.chat_template,
            bos_token=vocabulary.bos_token,
            eos_token=vocabulary.eos_token,
        )
        if vocabulary.chat_template is not None
        else None
    )
    engine = FrontEngine(
        served_name=settings.served_name,
        encoder=TextEncoder(vocabulary),
        token_bytes=token_bytes_of(vocabulary.tokenizer.to_str()),
        template=template,
        manager=manager,
        recorder=recorder,
        limits=HttpLimits(
            max_body_bytes=settings.http.max_body_bytes, worker_wait_s=_WORKER_WAIT_S
        ),
        clock=time.monotonic,
        wall_clock=_wall_clock,
        random_bits=secrets.randbits,
        started_at=int(_wall_clock()),
        keys=loaded.keys,
        tracer=make_tracer(
            settings.trace, process="front", clock=time.monotonic, wall_clock=_wall_clock
        ),
        launcher=None if settings.launcher is None else LauncherClient(path=settings.launcher),
    )
    control = FrontControl(engine=engine)
    return _Front(manager=manager, engine=engine, pool=pool, texts=texts, control=control)


async def _report(
    front: _Front, link: ParentLink, wishes: Wishes, server: Server, address: str
) -> None:
    """Say once in a while how it goes, and carry out the launcher's wishes.

    A front that reached a worker once stays ready while it has none: it holds open streams and
    answers new requests with 503 and Retry-After. Not ready, it would leave its Service, and new
    clients would find nobody who tells them when to come back.
    """
    loop = asyncio.get_running_loop()
    wished = asyncio.Event()

    def wake() -> None:
        # The loop may be over already; nothing is wished of it then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wished.set)

    wishes.wake_by(wake)
    was_ready = False
    num_beats = 0
    leaving: _Leaving | None = None
    answering: set[asyncio.Task[None]] = set()
    while True:
        wished.clear()
        while (wish := wishes.take()) is not None:
            if isinstance(wish, Drain):
                leaving = _Leaving(wish, front.manager, server)
            else:
                answering.add(asyncio.create_task(_answer(front.control, wish, link)))
        answering = {task for task in answering if not task.done()}
        if leaving is not None and leaving.is_over():
            server.should_exit = True
            return
        num_beats += 1
        was_ready = was_ready or front.manager.is_accepting
        state = "ready" if was_ready else "waiting"
        link.report(
            Report(
                state=state if leaving is None else "draining",
                num_beats=num_beats,
                detail=address,
                num_live=front.manager.num_live,
                metrics=front.engine.recorder.samples() if num_beats % 4 == 1 else (),
            )
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                await wished.wait()


class _Leaving:
    """The end of a front, from the wish for it on.

    Clients that keep a connection open ask on it also after the Service has taken this pod out, and
    new ones come until every node knows: all of them are served, and led to another pod by the end
    of their connection. So a front ends when nobody is connected any more. Where new ones never
    cease to come, they are refused in the second half of the time, which is for those within.
    """

    def __init__(self, wish: Drain, manager: TokenizerManager, server: Server) -> None:
        self._manager = manager
        self._server = server
        now_s = time.monotonic()
        self._settled_at_s = now_s + wish.settle_s
        self._ends_at_s = now_s + wish.deadline_s
        self._closes_at_s = (self._settled_at_s + self._ends_at_s) / 2
        self._is_closed = False
        manager.leave()
        server.send_clients_away()

    def is_over(self) -> bool:
        """Whether the front may end; at the deadline what is live ends with an error."""
        now_s = time.monotonic()
        if now_s > self._ends_at_s:
            self._manager.end_all()
            return True
        if now_s > self._closes_at_s:
            self._server.stop_listening()
        if now_s < self._settled_at_s or self._manager.num_live or self._server.num_connections:
            return False
        # Who came while this was looked at is served still: it is over at the next look.
        was_closed, self._is_closed = self._is_closed, True
        self._server.stop_listening()
        return was_closed


async def _answer(control: FrontControl, asked: Control, link: ParentLink) -> None:
    link.reply(await control.answer(asked))


def _wall_clock() -> float:
    return time.time()  # noqa: TID251 - the edge where wall-clock time enters


if __name__ == "__main__":
    main()
