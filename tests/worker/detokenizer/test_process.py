"""The detokenizer's own socket: whose texts it holds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from tests.worker.byte_vocabulary import write_model_folder

from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.text_messages import Feed, OpenText, TextChunk, ToDetokenizer
from mizzen_worker.detokenizer.process import DetokenizerServer
from mizzen_worker.detokenizer.settings import DetokenizerSettings
from mizzen_worker.ipc.codec import from_detokenizer_codec, to_detokenizer_codec
from mizzen_worker.observability.process_log import ProcessLog


class _Front:
    """One life of a TokenizerManager."""

    def __init__(self, server: DetokenizerServer, address: str) -> None:
        self._server = server
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

    def send(self, *messages: ToDetokenizer) -> None:
        self._socket.send(to_detokenizer_codec().encode(messages))
        self._server.run_once(10)

    def answers(self) -> tuple[object, ...]:
        return from_detokenizer_codec().decode(self._socket.recv())

    def die(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[DetokenizerServer, str]]:
    address = f"ipc://{tmp_path}/text"
    log = ProcessLog(level="info", is_json=False, fields={})
    write_model_folder(tmp_path)
    made = DetokenizerServer(
        DetokenizerSettings(model=str(tmp_path), skip_tokenizer=False, address=address, log=log)
    )
    yield made, address
    made.close()


def _open(name: str) -> OpenText:
    return OpenText(request_id=RequestId(name))


def test_texts_of_a_front_that_died_are_forgotten_when_the_next_one_speaks(
    server: tuple[DetokenizerServer, str],
) -> None:
    texts, address = server
    front = _Front(texts, address)
    front.send(*(_open(f"r{number}") for number in range(5)))
    assert texts.num_open == 5
    front.die()
    front = _Front(texts, address)
    front.send(_open("new"))
    assert texts.num_open == 1
    front.send(Feed(request_id=RequestId("new"), start=0, token_ids=(TokenId(65),), is_last=True))
    (chunk,) = front.answers()
    assert isinstance(chunk, TextChunk)
    assert texts.num_open == 0
    front.die()
