"""Measures what a streamed token costs: ``python -m tests.bench.bench_front``.

CPU microseconds per token of the TokenizerManager (with its codecs and its readers) and of the
detokenizer: first with everything in one process and no sockets, then as processes over ZMQ with a
worker that sends one token of every stream each step. Then whether the thousandth part of a long
text costs what the first did. No HTTP: ``bench_serving`` has that.
"""

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.report import publish
from tests.worker.byte_vocabulary import byte_tokenizer, write_model_folder

from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Capacity,
    Finished,
    Hello,
    Load,
    ModelIdentity,
    Submit,
    TokenEvent,
    TokenEvents,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.contracts.text_messages import Feed, OpenText, ToDetokenizer
from mizzen_worker.detokenizer.process import DetokenizerServer
from mizzen_worker.detokenizer.settings import DetokenizerSettings
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.ipc.codec import (
    from_detokenizer_codec,
    to_detokenizer_codec,
    to_tokenizer_codec,
)
from mizzen_worker.ipc.connection import WorkerConnection
from mizzen_worker.ipc.pool import ConnectionSet, WorkerPool
from mizzen_worker.ipc.zmq_channel import ZmqEndpoint
from mizzen_worker.ipc.zmq_link import ZmqLinks
from mizzen_worker.observability.process_log import ProcessLog
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import GenerateInput, RequestState
from mizzen_worker.tokenizer.text_channel import LinkTextChannel
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

TEXT = b"The quick brown fox jumps over the lazy dog. "
HELLO = Hello(
    wire_version=WIRE_VERSION,
    instance_id=InstanceId("bench"),
    identity=ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r"),
    capacity=Capacity(
        max_running_requests=4096,
        max_queued_requests=4096,
        kv_tokens=1 << 24,
        context_length=1 << 20,
    ),
    load=Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False),
)


def _wanted(num_tokens: int, stop: tuple[str, ...]) -> GenerateInput:
    return GenerateInput(
        prompt_ids=tuple(map(TokenId, range(64))),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1, ignore_eos=True),
        stop=stop,
    )


def _token(place: int, id_by_byte: dict[int, int]) -> TokenId:
    return TokenId(id_by_byte[TEXT[place % len(TEXT)]])


def _ids_of_bytes() -> dict[int, int]:
    tokenizer = byte_tokenizer()
    return {byte: tokenizer.encode(chr(byte)).ids[0] for byte in set(TEXT)}


def _events(request_ids: list[RequestId], place: int, ids: dict[int, int]) -> TokenEvents:
    token = _token(place, ids)
    return TokenEvents(
        events=tuple(
            TokenEvent(request_id, Generation(0), place, (token,)) for request_id in request_ids
        )
    )


def _finished(request_id: RequestId, num_tokens: int) -> Finished:
    return Finished(
        request_id=request_id,
        generation=Generation(0),
        reason=FinishReason(kind=FinishKind.LENGTH),
        usage=Usage(prompt_tokens=64, completion_tokens=num_tokens, cached_tokens=0),
    )


class _InProcess:
    """Manager and texts of one process; CPU seconds are booked by who spent them."""

    def __init__(self) -> None:
        self.manager_s = self.texts_s = 0.0
        self._texts = Texts(token_bytes_of(byte_tokenizer().to_str()))
        self._to_texts, self._from_texts = to_detokenizer_codec(), from_detokenizer_codec()
        self._to_tokenizer = to_tokenizer_codec()
        self._asked: list[ToDetokenizer] = []
        self.manager = _manager(lambda _address, _message: True, self)
        self.manager.on_attached("w", HELLO)

    def send(self, message) -> bool:
        self._asked.append(message)
        return True

    def step(self, messages: list[ToTokenizer], states: list[RequestState]) -> int:
        """Let messages through everything; give how many tokens were read."""
        payloads = [self._to_tokenizer.encode(message) for message in messages]
        begun = time.process_time()
        for payload in payloads:
            self.manager.on_message("w", self._to_tokenizer.decode(payload))
        asked = self._to_texts.encode(tuple(self._asked))
        self._asked.clear()
        fed = time.process_time()
        answers = [
            answer
            for message in self._to_texts.decode(asked)
            if (answer := self._texts.take(message)) is not None
        ]
        answered = self._from_texts.encode(tuple(answers))
        made = time.process_time()
        for answer in self._from_texts.decode(answered):
            self.manager.on_text(answer)
        num_read = 0
        for state in states:
            output = state.take()
            num_read += len(output.token_ids) if output is not None else 0
        read = time.process_time()
        self.manager_s += fed - begun + read - made
        self.texts_s += made - fed
        return num_read


def _manager(send: Callable[[str, ToWorker], bool], texts) -> TokenizerManager:
    return TokenizerManager(
        workers=Workers(tokenizer_fingerprint="t"),
        send=send,
        texts=texts,
        recorder=Recorder("front"),
        clock=time.monotonic,
        settings=ManagerSettings(max_live_requests=1 << 16),
    )


async def _in_process(num_streams: int, num_tokens: int, stop: tuple[str, ...]) -> dict[str, float]:
    ids = _ids_of_bytes()
    front = _InProcess()
    states = [
        front.manager.submit(RequestId(secrets.token_hex(16)), _wanted(num_tokens, stop))
        for _ in range(num_streams)
    ]
    request_ids = [state.request_id for state in states]
    num_read = 0
    for place in range(num_tokens):
        num_read += front.step([_events(request_ids, place, ids)], states)
    num_read += front.step([_finished(one, num_tokens) for one in request_ids], states)
    assert num_read == num_streams * num_tokens
    return {
        "manager": front.manager_s / num_read * 1e6,
        "detokenizer": front.texts_s / num_read * 1e6,
    }


def _long_text(num_tokens: int, stop: tuple[str, ...]) -> tuple[float, float]:
    """Give microseconds per token of the first and of the last tenth of one text."""
    ids = _ids_of_bytes()
    texts = Texts(token_bytes_of(byte_tokenizer().to_str()))
    texts.take(OpenText(request_id=RequestId("r"), stop=stop))
    spent_s: list[float] = []
    tenth = num_tokens // 10
    for part in range(10):
        begun = time.process_time()
        for place in range(part * tenth, (part + 1) * tenth):
            texts.take(
                Feed(request_id=RequestId("r"), start=place, token_ids=(_token(place, ids),))
            )
        spent_s.append(time.process_time() - begun)
    return spent_s[0] / tenth * 1e6, spent_s[-1] / tenth * 1e6


# The chain of processes.


def _serve_worker(address: str, num_streams: int, num_tokens: int, step_s: float) -> None:
    """Send one token of every stream each step, once all streams are here."""
    ids = _ids_of_bytes()
    endpoint = ZmqEndpoint(address, clock=time.monotonic)
    peer: PeerId | None = None
    request_ids: list[RequestId] = []
    place = 0
    due_s = 0.0
    while True:
        for sender, message in endpoint.receive(1 << 12, 0.001):
            peer = sender
            if isinstance(message, Submit):
                request_ids.append(message.request_id)
            elif type(message).__name__ == "Attach":
                endpoint.send(sender, HELLO)
        now_s = time.monotonic()
        if peer is None or len(request_ids) < num_streams or now_s < due_s or place > num_tokens:
            continue
        due_s = max(now_s, due_s + step_s if due_s else now_s)
        if place < num_tokens:
            endpoint.send(peer, _events(request_ids, place, ids))
        else:
            for request_id in request_ids:
                endpoint.send(peer, _finished(request_id, num_tokens))
        place += 1


def _serve_texts(address: str, model: str) -> None:
    log = ProcessLog(level="info", is_json=False, fields={})
    server = DetokenizerServer(
        DetokenizerSettings(model=model, skip_tokenizer=False, address=address, log=log)
    )
    while True:
        server.run_once(0.5)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _read(state: RequestState) -> int:
    num_read = 0
    while True:
        output = state.take()
        if output is None:
            await state.changed(10)
            continue
        num_read += len(output.token_ids)
        if output.final is not None:
            return num_read


def _over_zmq(num_streams: int, num_tokens: int, step_s: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(write_model_folder(folder / "model"))
        worker_at, texts_at = f"ipc://{folder}/w", f"ipc://{folder}/t"
        command = [sys.executable, "-m", "tests.bench.bench_front"]
        sizes = [str(num_streams), str(num_tokens), str(step_s)]
        children = [
            subprocess.Popen([*command, "--serve-worker", worker_at, *sizes]),
            subprocess.Popen([*command, "--serve-texts", texts_at, model]),
        ]
        try:
            return asyncio.run(
                _measured(worker_at, texts_at, children[1].pid, num_streams, num_tokens)
            )
        finally:
            for child in children:
                child.kill()
                child.wait()


async def _measured(
    worker_at: str, texts_at: str, texts_pid: int, num_streams: int, num_tokens: int
) -> dict[str, float]:
    links = ZmqLinks()
    texts = LinkTextChannel(texts_at, open_link=links.open_link)
    connections = ConnectionSet()
    manager = _manager(connections.send, texts)

    def connect(address: str) -> WorkerConnection:
        return WorkerConnection(
            address,
            open_link=links.open_link,
            instance_id=InstanceId("front"),
            listener=manager,
            clock=time.monotonic,
        )

    pool = WorkerPool(names=(worker_at,), connect=connect, connections=connections)
    tasks = [asyncio.create_task(work) for work in (pool.run(), texts.run(manager), manager.run())]
    while not manager.is_accepting:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    begun_s, texts_s, front_s = time.monotonic(), _cpu_s(texts_pid), time.process_time()
    states = [
        manager.submit(RequestId(secrets.token_hex(16)), _wanted(num_tokens, ()))
        for _ in range(num_streams)
    ]
    num_read = sum(await asyncio.gather(*map(_read, states)))
    assert num_read == num_streams * num_tokens
    result = {
        "manager": (time.process_time() - front_s) / num_read * 1e6,
        "detokenizer": (_cpu_s(texts_pid) - texts_s) / num_read * 1e6,
        "tokens/s": num_read / (time.monotonic() - begun_s),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--json", type=Path, default=Path("out/bench/front.json"))
    parser.add_argument("--serve-worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--serve-texts", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_worker:
        address, num_streams, num_tokens, step_s = given.serve_worker
        _serve_worker(address, int(num_streams), int(num_tokens), float(step_s))
    if given.serve_texts:
        _serve_texts(*given.serve_texts)
    rows = []
    stops = {"no stop": (), "2 stop strings": ("\n\nHuman:", "<|end|>")}
    for name, stop in stops.items():
        for who, cost in asyncio.run(_in_process(given.streams, given.tokens, stop)).items():
            rows.append({"measured": f"{who}, in one process, {name}, µs/token", "value": cost})
    for name, stop in stops.items():
        first, last = _long_text(10_000, stop)
        rows.append({"measured": f"text of 10,000 tokens, {name}: first 1,000", "value": first})
        rows.append({"measured": f"text of 10,000 tokens, {name}: last 1,000", "value": last})
    for step_s in (given.step_s, 0.0):
        pace = f"{step_s * 1e3:.0f} ms a step" if step_s else "as fast as it goes"
        chain = _over_zmq(given.streams, given.tokens, step_s)
        rows.extend(
            {"measured": f"{who}, processes over ZMQ, {pace}", "value": cost}
            for who, cost in chain.items()
        )
    publish("front", rows, given.json)


if __name__ == "__main__":
    main()
