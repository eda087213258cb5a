"""Owns what waits for one peer's credit, coalesced per request; owns no sockets and no clock.

Invariants: messages of one request leave in the order they came in; held token events are at most
one per request; nothing is dropped except what a newer generation of the same request makes
stale; ``ready`` is emptied only by the caller.
"""

from collections import deque
from dataclasses import dataclass, field

from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.messages import (
    Finished,
    HandBack,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
    ToTokenizer,
)


@dataclass(slots=True)
class _Held:
    """One request's tokens beyond credit, and the terminal message that follows them."""

    first: TokenEvent
    token_ids: list[TokenId]
    logprobs: list[TokenLogprob]
    terminal: Finished | HandBack | None = None

    @classmethod
    def of(cls, event: TokenEvent) -> "_Held":
        return cls(event, list(event.token_ids), list(event.logprobs))

    def event(self) -> TokenEvent:
        """Give everything held as one event."""
        first = self.first
        return TokenEvent(
            first.request_id,
            first.generation,
            first.start,
            tuple(self.token_ids),
            tuple(self.logprobs),
        )


@dataclass(slots=True, kw_only=True)
class Outbox:
    """One peer's messages: ``ready`` may be sent now, the rest waits for credit."""

    credit: int = 0
    ready: deque[ToTokenizer] = field(default_factory=deque)
    _held: dict[RequestId, _Held] = field(default_factory=dict)

    @property
    def num_held(self) -> int:
        """Number of requests whose tokens wait for credit."""
        return len(self._held)

    def put(self, message: ToTokenizer) -> None:
        """Take a message in; what credit covers becomes ready at once."""
        match message:
            case TokenEvents():
                self._put_tokens(message)
            case Finished() | HandBack():
                held = self._held.get(message.request_id)
                if held is not None and held.first.generation == message.generation:
                    held.terminal = message
                else:
                    self.ready.append(message)
            case _:
                self.ready.append(message)

    def grant(self, credit: int) -> None:
        """Book more credit and release what it covers, the longest waiting request first."""
        self.credit += credit
        while self._held and self.credit > 0:
            events: list[TokenEvent] = []
            terminals: list[ToTokenizer] = []
            while self._held and self.credit > 0:
                held = self._held.pop(next(iter(self._held)))
                self.credit -= 1
                events.append(held.event())
                if held.terminal is not None:
                    terminals.append(held.terminal)
            self.ready.append(TokenEvents(events=tuple(events)))
            self.ready.extend(terminals)

    def _put_tokens(self, message: TokenEvents) -> None:
        if not self._held and self.credit >= len(message.events):
            self.credit -= len(message.events)
            self.ready.append(message)
            return
        if message.prompt_logprobs:
            # They precede their request's first token, so they may leave before what is held.
            self.ready.append(TokenEvents(events=(), prompt_logprobs=message.prompt_logprobs))
        for event in message.events:
            self._hold(event)
        self.grant(0)

    def _hold(self, event: TokenEvent) -> None:
        held = self._held.get(event.request_id)
        if held is None or held.first.generation < event.generation:
            self._held[event.request_id] = _Held.of(event)
        elif held.first.generation == event.generation:
            held.token_ids.extend(event.token_ids)
            held.logprobs.extend(event.logprobs)
