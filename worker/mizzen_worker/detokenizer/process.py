"""Owns the DetokenizerManager process: its ROUTER and its loop; owns no text (``Texts`` does).

Bounded: the TokenizerManager has at most one unanswered ``Feed`` per live request.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.text_messages import OpenText, ToDetokenizer
from mizzen_worker.detokenizer.settings import DetokenizerSettings
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.ipc.child_process import run_child
from mizzen_worker.ipc.codec import from_detokenizer_codec, to_detokenizer_codec
from mizzen_worker.ipc.parent_link import ParentLink, Report, Wishes
from mizzen_worker.ipc.zmq_channel import bind
from mizzen_worker.vocabulary.load import load_vocabulary
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

logger = logging.getLogger(__name__)

_MAX_PAYLOADS_PER_TURN = 256
_IDLE_WAIT_S = 0.5


class DetokenizerServer:
    """Answers one TokenizerManager. Owned by one thread."""

    def __init__(self, settings: DetokenizerSettings) -> None:
        vocabulary = load_vocabulary(Path(settings.model), is_skipped=settings.skip_tokenizer)
        self._table = token_bytes_of(vocabulary.tokenizer.to_str())
        self._texts = Texts(self._table)
        self._peer = b""
        self._decode = to_detokenizer_codec().decode
        self._encode = from_detokenizer_codec().encode
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.sndhwm = self._socket.rcvhwm = 1 << 16
        bind(self._socket, settings.address)

    @property
    def num_open(self) -> int:
        """Texts held now."""
        return self._texts.num_open

    def run_once(self, timeout_s: float) -> int:
        """Answer what arrived, waiting for the first message; give how many there were."""
        if not self._socket.poll(max(1, int(timeout_s * 1000)), zmq.POLLIN):
            return 0
        for num_done in range(_MAX_PAYLOADS_PER_TURN):
            try:
                peer, payload = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return num_done
            try:
                messages = self._decode(payload)
            except WireError as error:
                logger.warning("refused a malformed message", extra={"detail": str(error)})
                continue
            if peer != self._peer:
                # It connected anew, or died and was started again: what it had open is over.
                self._peer, self._texts = peer, Texts(self._table)
            _log_opened(messages)
            answers = [answer for one in messages if (answer := self._texts.take(one)) is not None]
            if answers:
                self._socket.send_multipart([peer, self._encode(tuple(answers))])
        return _MAX_PAYLOADS_PER_TURN

    def close(self) -> None:
        """Unbind."""
        self._socket.close(linger=0)
        self._context.term()


def _log_opened(messages: Sequence[ToDetokenizer]) -> None:
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for one in messages:
        if isinstance(one, OpenText):
            log_id = one.log_id or one.request_id
            fields = {"request_id": log_id, "engine_request_id": one.request_id}
            logger.debug("text opened", extra=fields)


def main() -> None:
    """Run the process."""
    run_child("detokenizer", DetokenizerSettings, _run)


def _run(settings: DetokenizerSettings, link: ParentLink, wishes: Wishes) -> None:
    server = DetokenizerServer(settings)
    num_turns = 0
    reported_s = 0.0
    while wishes.take() is None:
        server.run_once(_IDLE_WAIT_S)
        num_turns += 1
        now_s = time.monotonic()
        if now_s - reported_s >= 1:
            reported_s = now_s
            link.report(Report(state="ready", num_beats=num_turns, num_live=server.num_open))
    server.close()


if __name__ == "__main__":
    main()
