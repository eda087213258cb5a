"""A TokenizerManager, workers and a detokenizer, all synchronous: a test says what happens next.

Messages pass the real codecs and wait in queues until the test delivers them; a worker that is
killed takes its queue with it.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from tests.worker.byte_vocabulary import EOS_ID, byte_tokenizer
from tests.worker.tokenizer.fleet_workers import IDENTITY, FleetWorker

from mizzen_worker.contracts.errors import WorkerError
from mizzen_worker.contracts.ids import InstanceId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Capacity,
    HandBackCause,
    Hello,
    Load,
    TokenLogprob,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.contracts.text_messages import FromDetokenizer, ToDetokenizer
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import FinalOutput, GenerateInput, RequestState
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

TOKENIZER = byte_tokenizer()
TABLE = token_bytes_of(TOKENIZER.to_str())


class Reader:
    """What one client read."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.final: FinalOutput | None = None
        self.error: WorkerError | None = None

    @property
    def has_ended(self) -> bool:
        return self.final is not None or self.error is not None

    def read(self) -> None:
        while not self.has_ended:
            try:
                output = self.state.take()
            except WorkerError as error:
                self.error = error
                return
            if output is None:
                return
            self.text += output.text
            self.token_ids.extend(output.token_ids)
            self.logprobs.extend(output.logprobs)
            self.prompt_logprobs.extend(output.prompt_logprobs)
            self.final = output.final


class Fleet:
    """The whole front side; nothing happens but what a test asks for."""

    def __init__(
        self,
        make_worker: Callable[[], FleetWorker],
        names: Sequence[str] = ("a", "b"),
        settings: ManagerSettings | None = None,
    ) -> None:
        self._make_worker = make_worker
        self.names = tuple(names)
        self.now_s = 0.0
        self.workers: dict[str, FleetWorker] = {}
        self.draining: set[str] = set()
        self.readers: list[Reader] = []
        self._outgoing: dict[str, deque[bytes]] = {}
        self._texts = Texts(TABLE)
        self._answers: deque[FromDetokenizer] = deque()
        self.manager = TokenizerManager(
            workers=Workers(tokenizer_fingerprint="t"),
            send=self._send,
            texts=self,
            recorder=Recorder("front"),
            clock=lambda: self.now_s,
            settings=settings
            or ManagerSettings(end_ids=frozenset({TokenId(EOS_ID)}), max_lost_workers=10_000),
        )
        self._to_worker, self._to_tokenizer = to_worker_codec(), to_tokenizer_codec()
        for name in self.names:
            self.start(name)

    def _send(self, address: str, message: ToWorker) -> bool:
        worker = self.workers.get(address)
        if worker is not None:
            worker.take(self._to_worker.decode(self._to_worker.encode(message)))
        return worker is not None

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        answer = self._texts.take(message)
        if answer is not None:
            self._answers.append(answer)
        return True

    def submit(self, wanted: GenerateInput) -> Reader:
        reader = Reader(self.manager.submit(secrets.token_hex(8), wanted))
        self.readers.append(reader)
        return reader

    def start(self, name: str) -> None:
        if name in self.workers:
            return
        self.workers[name] = self._make_worker()
        self.draining.discard(name)
        self._outgoing[name] = deque()
        load = Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False)
        capacity = Capacity(
            max_running_requests=4, max_queued_requests=64, kv_tokens=256, context_length=128
        )
        hello = Hello(
            wire_version=WIRE_VERSION,
            instance_id=InstanceId(name),
            identity=IDENTITY,
            capacity=capacity,
            load=load,
        )
        self.manager.on_attached(name, hello)

    def kill(self, name: str) -> None:
        if self.workers.pop(name, None) is not None:
            del self._outgoing[name]
            self.manager.on_lost(name, "killed")

    def step(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            self._post(name, worker.step())

    def hand_back(self, name: str, cause: HandBackCause) -> None:
        worker = self.workers.get(name)
        if worker is not None and name not in self.draining:
            self.draining.add(name)
            self._post(name, worker.hand_back(cause))

    def _post(self, name: str, messages: Sequence[ToTokenizer]) -> None:
        self._outgoing[name].extend(map(self._to_tokenizer.encode, messages))

    def deliver(self, name: str, most: int = 1 << 30) -> None:
        for _ in range(most):
            queue = self._outgoing.get(name)
            if not queue:
                return
            self.manager.on_message(name, self._to_tokenizer.decode(queue.popleft()))

    def deliver_texts(self, most: int = 1 << 30) -> None:
        while self._answers and most:
            most -= 1
            self.manager.on_text(self._answers.popleft())

    def lose_texts(self) -> None:
        self._texts = Texts(TABLE)
        self._answers.clear()
        self.manager.on_texts_lost()

    def tick(self) -> None:
        self.now_s += 0.3
        self.manager.tick()

    def turn(self) -> None:
        """Everybody does a step and everything arrives."""
        for name in self.names:
            self.step(name)
            self.deliver(name)
        self.deliver_texts()
        for reader in self.readers:
            reader.read()

    def run_to_end(self, limit: int = 2_000) -> None:
        """Start whoever is missing and go on until every reader has its end."""
        for name in self.names:
            if name in self.draining:
                self.kill(name)
            self.start(name)
        for _ in range(limit):
            if all(reader.has_ended for reader in self.readers) and self.manager.num_live == 0:
                return
            self.turn()
            self.tick()
        raise AssertionError("a request does not end")


def in_loop(scenario: Callable[[], None]) -> None:
    """Run a synchronous scenario where asyncio's events can be made."""

    async def run() -> None:
        scenario()

    asyncio.run(run())
