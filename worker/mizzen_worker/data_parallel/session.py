"""Owns one tokenizer process's conversation with all ranks: links, routes of requests, controls.

To each rank it is that tokenizer, over a link of its own: order, abort, credit and loss are between
the tokenizer and the rank, and what goes through is passed on as it came, not encoded again. Owns
no choice and no load. Invariants: a request has one route, from its submission to its terminal
message; when a link is lost, each request routed there is handed back, once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import Generation, RequestId
from mizzen_worker.contracts.messages import (
    Abort,
    Attach,
    Control,
    Finished,
    HandBack,
    HandBackCause,
    Heartbeat,
    Hello,
    Reply,
    Submit,
    TokenEvents,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.data_parallel.credit import CreditShares
from mizzen_worker.data_parallel.ranks import Ranks
from mizzen_worker.data_parallel.replies import AwaitedReplies
from mizzen_worker.ipc.channel import LAST_WORDS_S
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import Link, LinkLostError, OpenLink
from mizzen_worker.ipc.peek import num_token_events

logger = logging.getLogger(__name__)

_RETRY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    rank: str
    generation: Generation


class Session:
    """One tokenizer. Owned by the controller's loop; ``send`` takes bytes for the tokenizer."""

    def __init__(
        self,
        attach: Attach,
        *,
        ranks: Ranks,
        open_link: OpenLink,
        send: Callable[[bytes], None],
        now_s: float,
    ) -> None:
        self.instance_id = attach.instance_id
        self.last_seen_s = now_s
        self.is_greeted = False
        self._attach = attach
        self._ranks = ranks
        self._open_link = open_link
        self._send = send
        self._credit = CreditShares(attach.credit, ranks.addresses)
        self._links: dict[str, Link] = {}
        self._routes: dict[RequestId, _Route] = {}
        self._replies = AwaitedReplies()
        self._encode = to_tokenizer_codec().encode
        self._encode_up = to_worker_codec().encode
        self._decode = to_tokenizer_codec().decode
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def num_routed(self) -> int:
        """Requests that a rank has."""
        return len(self._routes)

    def start(self) -> None:
        """Begin to connect to every rank."""
        for address in self._ranks.addresses:
            self._tasks[address] = asyncio.create_task(self._keep(address))

    def replace_link(self, address: str) -> None:
        """Give up a rank that is gone or silent, soon; the link is opened again.

        Not at once: of a rank that ended, another connection may know first. What it said last is
        still on its way here, and then this link ends too; sooner than anybody waits for its words.
        """
        link = self._links.get(address)
        if link is not None:
            asyncio.get_running_loop().call_later(LAST_WORDS_S / 2, link.close)

    async def close(self) -> None:
        """Leave every rank: they end what this tokenizer has there."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # From the tokenizer.

    def take(self, message: ToWorker, payload: bytes) -> None:
        """Pass a message on to the rank or ranks it is for."""
        match message:
            case Submit():
                self._submit(message, payload)
            case Abort():
                route = self._routes.get(message.request_id)
                if route is not None and route.generation == message.generation:
                    self._post(route.rank, payload)
            case Heartbeat():
                self._beat(message.credit)
            case Control():
                asked = [address for address in tuple(self._links) if self._post(address, payload)]
                self._tell_reply(self._replies.expect(message.control_id, asked))
            case Attach():
                self._greet()

    def _submit(self, submit: Submit, payload: bytes) -> None:
        older = self._routes.pop(submit.request_id, None)
        if older is not None:
            if submit.generation <= older.generation:
                self._routes[submit.request_id] = older
                logger.warning("dropped a repeated submit", extra={"request_id": submit.request_id})
                return
            self._ranks.note_departure(older.rank)
            abort = Abort(request_id=submit.request_id, generation=older.generation)
            self._post(older.rank, self._encode_up(abort))
        excluded = set(self._ranks.addresses) - self._links.keys()
        while (address := self._ranks.choose(submit, excluded)) is not None:
            if self._post(address, payload):
                route = _Route(rank=address, generation=submit.generation)
                self._routes[submit.request_id] = route
                return
            self._ranks.note_departure(address)
            excluded.add(address)
        is_draining = self._ranks.load().is_draining and bool(self._ranks.num_attached)
        cause = HandBackCause.DRAINING if is_draining else HandBackCause.RESTARTING
        self._hand_back(submit.request_id, submit.generation, cause)

    def _beat(self, returned: int) -> None:
        """Tell every rank that this tokenizer lives, and return to each the credit it used."""
        self._credit.note_returned(returned)
        for address in tuple(self._links):
            self._post(address, self._encode_up(Heartbeat(credit=self._credit.grant(address))))

    def _post(self, address: str, payload: bytes) -> bool:
        link = self._links.get(address)
        return link is not None and link.send(payload)

    # From the ranks.

    async def _keep(self, address: str) -> None:
        while True:
            link = self._open_link(address)
            try:
                await self._follow(address, link)
            except LinkLostError as error:
                if address in self._links:
                    logger.info(
                        "link to a rank lost", extra={"rank": address, "reason": str(error)}
                    )
            finally:
                link.close()
                self._drop(address)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self, address: str, link: Link) -> None:
        attach = Attach(
            wire_version=self._attach.wire_version,
            instance_id=self._attach.instance_id,
            credit=self._credit.grant(address),
        )
        while address not in self._links:
            link.send(self._encode_up(attach))
            try:
                # Not wait_for: up to 3.11 it may swallow the cancellation of this task.
                async with asyncio.timeout(_RETRY_S):
                    payloads = await link.receive()
            except TimeoutError:
                continue
            self._take_all(address, link, payloads)
        while True:
            self._take_all(address, link, await link.receive())

    def _take_all(self, address: str, link: Link, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            num_events = num_token_events(payload)
            if num_events is not None:
                self._credit.note_forwarded(address, num_events)
                self._send(payload)
                continue
            try:
                message = self._decode(payload)
            except WireError as error:
                logger.warning("refused a malformed message", extra={"detail": str(error)})
                continue
            self._take_from(address, link, message, payload)

    def _take_from(self, address: str, link: Link, message: ToTokenizer, payload: bytes) -> None:
        match message:
            case TokenEvents():
                self._credit.note_forwarded(address, len(message.events))
                self._send(payload)
            case Finished() | HandBack():
                route = self._routes.get(message.request_id)
                if route == _Route(rank=address, generation=message.generation):
                    del self._routes[message.request_id]
                    self._ranks.note_departure(address)
                self._send(payload)
            case Hello():
                self._links[address] = link
                self._greet()
            case Reply(control_id=0):
                raise LinkLostError(message.message)
            case Reply():
                self._tell_reply(self._replies.take(address, message))
            case Heartbeat():
                pass  # The controller's own connection hears it too.

    def _drop(self, address: str) -> None:
        """Hand back what the rank had, and let nobody wait for its answers."""
        self._links.pop(address, None)
        self._credit.note_lost(address)
        lost = [(one, route) for one, route in self._routes.items() if route.rank == address]
        for request_id, route in lost:
            del self._routes[request_id]
            self._ranks.note_departure(address)
            self._hand_back(request_id, route.generation, HandBackCause.RESTARTING)
        for reply in self._replies.note_lost(address):
            self._tell_reply(reply)

    # To the tokenizer.

    def _greet(self) -> None:
        hello = self._ranks.hello()
        if self._links and hello is not None:
            self.is_greeted = True
            self._send(self._encode(hello))

    def _hand_back(
        self, request_id: RequestId, generation: Generation, cause: HandBackCause
    ) -> None:
        message = HandBack(request_id=request_id, generation=generation, cause=cause)
        self._send(self._encode(message))

    def _tell_reply(self, reply: Reply | None) -> None:
        if reply is not None:
            self._send(self._encode(reply))
