"""A whole engine in one event loop: real HTTP, tokenizer, channel, scheduler, detokenizer.

Only the runner is fake, and it computes tokens from KV contents: what a client reads can be
compared with ``expected_text``, whatever happened on the way.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.worker.byte_vocabulary import EOS_ID, VOCAB_SIZE, byte_vocabulary
from tests.worker.fake_model import Expected, expected
from tests.worker.fake_runner import FakeRunner

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.ids import InstanceId, TokenId
from mizzen_worker.contracts.messages import ModelIdentity
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.contracts.text_messages import FromDetokenizer, ToDetokenizer
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.http_api.access import AccessKeys
from mizzen_worker.http_api.app import create_app
from mizzen_worker.http_api.connection_guard import GuardedProtocol
from mizzen_worker.http_api.engine import FrontEngine, HttpLimits
from mizzen_worker.http_api.server import listen, make_server
from mizzen_worker.ipc.connection import ConnectionTiming, WorkerConnection
from mizzen_worker.ipc.memory_channel import MemoryHub
from mizzen_worker.ipc.pool import ConnectionSet, WorkerPool
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.workers import Workers
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.tokenizer.chat_template import ChatTemplate
from mizzen_worker.tokenizer.encode import TextEncoder
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.text_channel import TextListener
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

MODEL = "tiny"


@dataclass(slots=True, kw_only=True)
class DirectTextChannel:
    """Texts made by a function of this process; answers arrive in the next turn of the loop."""

    take: Callable[[ToDetokenizer], FromDetokenizer | None]
    listener: TextListener | None = None

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        answer = self.take(message)
        if answer is not None and self.listener is not None:
            asyncio.get_running_loop().call_soon(self.listener.on_text, answer)
        return True


class Stack:
    """Workers can be started, killed and drained while clients stream."""

    def __init__(
        self,
        folder: Path,
        *,
        addresses: tuple[str, ...] = ("memory://a",),
        manager_settings: ManagerSettings | None = None,
        limits: HttpLimits | None = None,
        keys: AccessKeys | None = None,
        max_running: int = 8,
        max_queued: int = 64,
        num_pages: int = 512,
        step_s: float = 0.0,
    ) -> None:
        self.vocabulary = byte_vocabulary(folder)
        self.addresses = addresses
        self.step_s = step_s
        self.hub = MemoryHub(clock=time.monotonic)
        self.recorder = Recorder("front")
        self.loops: dict[str, SchedulerLoop] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._limits = limits or HttpLimits()
        self._keys = keys or AccessKeys()
        self._max_running, self._max_queued = max_running, max_queued
        self.runner_limits = RunnerLimits(
            max_slots=max_running,
            num_pages=num_pages,
            page_size=4,
            context_length=512,
            vocab_size=VOCAB_SIZE,
        )
        self.texts = Texts(token_bytes_of(self.vocabulary.tokenizer.to_str()))
        channel = DirectTextChannel(take=self.texts.take)
        connections = ConnectionSet()
        self.manager = TokenizerManager(
            workers=Workers(tokenizer_fingerprint=self.vocabulary.fingerprint),
            send=connections.send,
            texts=channel,
            recorder=self.recorder,
            clock=time.monotonic,
            settings=manager_settings or ManagerSettings(end_ids=frozenset({TokenId(EOS_ID)})),
        )
        channel.listener = self.manager
        self.pool = WorkerPool(
            names=addresses, connect=self._connect, connections=connections, resolve=_itself
        )

    def _connect(self, address: str) -> WorkerConnection:
        return WorkerConnection(
            address,
            open_link=self.hub.open_link,
            instance_id=InstanceId("front"),
            listener=self.manager,
            clock=time.monotonic,
            timing=ConnectionTiming(heartbeat_s=0.05, retry_s=0.01),
        )

    async def __aenter__(self) -> "Stack":
        for address in self.addresses:
            self.start_worker(address)
        engine = FrontEngine(
            served_name=MODEL,
            encoder=TextEncoder(self.vocabulary),
            token_bytes=token_bytes_of(self.vocabulary.tokenizer.to_str()),
            template=ChatTemplate(
                self.vocabulary.chat_template or "", bos_token="", eos_token="<end>"
            ),
            manager=self.manager,
            recorder=self.recorder,
            limits=self._limits,
            clock=time.monotonic,
            wall_clock=lambda: 1_700_000_000.0,
            random_bits=secrets.randbits,
            started_at=1_700_000_000,
            keys=self._keys,
        )
        listener = listen("127.0.0.1", 0, flag="--http-port")
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = make_server(create_app(engine), grace_s=1)
        self._tasks = [
            asyncio.create_task(self.pool.run()),
            asyncio.create_task(self.manager.run()),
        ]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self.until(lambda: self.manager.is_accepting and self._server.started)
        return self

    async def __aexit__(self, *_error: object) -> None:
        # The server's own end is two pauses of a tenth of a second; a stack's clients are gone.
        for listening in self._server.servers:
            listening.close()
        for connection in self.connections:
            connection.shutdown()
        tasks = [self._serving, *self._tasks, *self._drivers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def start_worker(self, address: str) -> None:
        endpoint = self.hub.bind(address)
        loop = SchedulerLoop(
            runner=FakeRunner(self.runner_limits),
            endpoint=endpoint,
            clock=time.monotonic,
            settings=SchedulerSettings(
                instance_id=InstanceId(address + secrets.token_hex(2)),
                identity=ModelIdentity(
                    served_name=MODEL,
                    fingerprint="f",
                    tokenizer=self.vocabulary.fingerprint,
                    resume_identity="r",
                ),
                eos_token_ids=(TokenId(EOS_ID),),
                max_running=self._max_running,
                max_queued=self._max_queued,
                max_chunk_tokens=64,
                heartbeat_interval_s=0.05,
                max_idle_wait_s=0.0,
                is_audited=True,
            ),
        )
        self.loops[address] = loop
        self._drivers[address] = asyncio.create_task(self._drive(loop))

    def kill_worker(self, address: str) -> None:
        """End a worker as kill -9 does: in the middle, saying nothing."""
        self._drivers.pop(address).cancel()
        self.hub.unbind(address)
        del self.loops[address]

    def drain_worker(self, address: str, mode: DrainMode) -> None:
        self.loops[address].start_drain(DrainOrder(mode=mode, deadline=None))

    async def _drive(self, loop: SchedulerLoop) -> None:
        while True:
            loop.run_once()
            await asyncio.sleep(self.step_s or 0.0005)

    @property
    def connections(self) -> list[GuardedProtocol]:
        return list(self._server.server_state.connections)

    @property
    def num_running(self) -> int:
        return sum(loop.num_live for loop in self.loops.values())

    async def until(self, condition: Callable[[], bool], limit_s: float = 20.0) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110 - conditions of many owners
                await asyncio.sleep(0.002)

    def expected(self, prompt: str, **sampling: object) -> Expected:
        ids = self.vocabulary.tokenizer.encode(prompt).ids
        params = SamplingParams(**{"seed": 0, "temperature": 0.0, **sampling})
        return expected(ids, params, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS_ID,))

    def expected_ids(self, prompt: str, **sampling: object) -> list[int]:
        return self.expected(prompt, **sampling).output

    def expected_text(self, prompt: str, **sampling: object) -> str:
        ids = self.expected_ids(prompt, **sampling)
        return self.vocabulary.tokenizer.decode(ids, skip_special_tokens=True)


async def _itself(address: str) -> tuple[str, ...]:
    return (address,)
