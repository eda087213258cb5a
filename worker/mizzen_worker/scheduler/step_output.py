"""Owns what is to be said to tokenizer processes after a step; owns no connection.

Invariants: per peer, tokens go out before the terminal events of the same step, so a request's
terminal event follows its last tokens; a request's tokens and scores are reported once, in order.
"""

from collections.abc import Iterable

from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import (
    Finished,
    HandBack,
    HandBackCause,
    PromptLogprobs,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from mizzen_worker.contracts.request import FinishReason
from mizzen_worker.ipc.channel import WorkerEndpoint
from mizzen_worker.scheduler.req import Req


class StepOutput:
    """Collects the events of one step and sends them grouped by peer."""

    def __init__(self, endpoint: WorkerEndpoint) -> None:
        self._endpoint = endpoint
        self._tokens: dict[PeerId, list[TokenEvent]] = {}
        self._prompts: dict[PeerId, list[PromptLogprobs]] = {}
        self._terminals: list[tuple[PeerId, Finished | HandBack]] = []

    def report_tokens(self, req: Req) -> None:
        """Queue the output tokens that the peer does not have yet."""
        start, end = req.num_reported, req.num_output
        if start == end:
            return
        req.num_reported = end
        event = TokenEvent(
            req.request_id, req.generation, start, req.output(start), req.take_logprobs()
        )
        self._tokens.setdefault(req.peer, []).append(event)

    def report_prompt_logprobs(
        self, req: Req, start: int, logprobs: tuple[TokenLogprob, ...]
    ) -> None:
        """Queue scores of prompt tokens from index ``start`` on."""
        scored = PromptLogprobs(req.request_id, req.generation, start, logprobs)
        self._prompts.setdefault(req.peer, []).append(scored)

    def report_finished(self, req: Req, reason: FinishReason) -> None:
        """Queue the one terminal event of an attempt that ended."""
        message = Finished(
            request_id=req.request_id,
            generation=req.generation,
            reason=reason,
            usage=req.usage(),
        )
        self._terminals.append((req.peer, message))

    def report_handed_back(
        self, req: Req, cause: HandBackCause, retry_after_s: float | None
    ) -> None:
        """Queue the one terminal event of an attempt that goes back unfinished."""
        self._terminals.append((req.peer, _hand_back(req, cause, retry_after_s)))

    def send_hand_backs(self, reqs: Iterable[Req], cause: HandBackCause) -> None:
        """Send a terminal event for each at once, and in place of every queued terminal event.

        What else is queued is dropped: each peer goes on from the tokens that it has.
        """
        for peer, message in self._terminals:
            self._endpoint.send(
                peer,
                HandBack(request_id=message.request_id, generation=message.generation, cause=cause),
            )
        for req in reqs:
            self._endpoint.send(req.peer, _hand_back(req, cause))
        self._clear()

    def forget(self, peer: PeerId) -> None:
        """Drop what is queued for a peer that is gone."""
        self._tokens.pop(peer, None)
        self._prompts.pop(peer, None)
        self._terminals = [(to, message) for to, message in self._terminals if to != peer]

    def flush(self) -> None:
        """Send everything queued."""
        for peer in {**self._tokens, **self._prompts}:
            message = TokenEvents(
                events=tuple(self._tokens.get(peer, ())),
                prompt_logprobs=tuple(self._prompts.get(peer, ())),
            )
            self._endpoint.send(peer, message)
        for peer, terminal in self._terminals:
            self._endpoint.send(peer, terminal)
        self._clear()

    def _clear(self) -> None:
        self._tokens.clear()
        self._prompts.clear()
        self._terminals.clear()


def _hand_back(req: Req, cause: HandBackCause, retry_after_s: float | None = None) -> HandBack:
    return HandBack(
        request_id=req.request_id,
        generation=req.generation,
        cause=cause,
        retry_after_s=retry_after_s,
    )
