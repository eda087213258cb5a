"""Owns the record of one request and the table of its legal moves; owns no queue and no page.

Intervals of a request's tokens (prompt and output in one array)::

    [0, num_kv)           KV is in the lease's pages (launched, and outside a step also settled)
    [num_kv, num_tokens)  known, still to be computed; exactly 1 token while decoding
    [0, num_prompt)       prompt; the rest is output, never shortened, kept by retraction

Invariants: a slot and an open lease are held exactly in PREFILLING and DECODING; the state changes
through ``move`` only; ``order`` is given once, so a retracted request keeps its age.
"""

import enum
from typing import TYPE_CHECKING

import numpy as np

from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import PageKey, page_key
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import Generation, PeerId, RequestId, SlotIndex, TokenId
from mizzen_worker.contracts.messages import Submit
from mizzen_worker.contracts.request import SamplingParams, Usage
from mizzen_worker.scheduler.policies import Standing

if TYPE_CHECKING:
    from mizzen_worker.cache.results import Match


class ReqState(enum.Enum):
    """Where a request is in its life; the container that holds it follows from this."""

    WAITING = "waiting"
    """In the waiting line: new, or retracted."""
    PREFILLING = "prefilling"
    """Running; some chunk of its known tokens is still to be computed."""
    DECODING = "decoding"
    """Running; every step gives a token."""
    FINISHED = "finished"
    """A ``Finished`` was queued, or its peer is lost."""
    HANDED_BACK = "handed_back"
    """A ``HandBack`` was queued."""


_LEGAL_MOVES: dict[ReqState, frozenset[ReqState]] = {
    ReqState.WAITING: frozenset({ReqState.PREFILLING, ReqState.FINISHED, ReqState.HANDED_BACK}),
    ReqState.PREFILLING: frozenset(
        {ReqState.DECODING, ReqState.WAITING, ReqState.FINISHED, ReqState.HANDED_BACK}
    ),
    ReqState.DECODING: frozenset({ReqState.WAITING, ReqState.FINISHED, ReqState.HANDED_BACK}),
    ReqState.FINISHED: frozenset(),
    ReqState.HANDED_BACK: frozenset(),
}


class Req:
    """One attempt of one request on this worker."""

    __slots__ = (
        "_tokens",
        "arrived_at",
        "deadline",
        "generation",
        "known",
        "leader",
        "lease",
        "max_tokens",
        "namespace",
        "num_cached",
        "num_kv",
        "num_leader_pages",
        "num_preempted",
        "num_prompt",
        "num_reported",
        "num_tokens",
        "order",
        "peer",
        "request_id",
        "sampling",
        "slot",
        "standing",
        "state",
    )

    def __init__(
        self,
        submit: Submit,
        *,
        peer: PeerId,
        order: int,
        context_length: int,
        priority: int = 0,
    ) -> None:
        self.request_id: RequestId = submit.request_id
        self.generation: Generation = submit.generation
        self.peer = peer
        self.order = order
        """Arrival number: the age that every fair choice uses."""
        self.standing = Standing(
            order=order, priority=priority, max_output=submit.sampling.max_new_tokens
        )
        """``priority`` is 0 where the policy does not use it."""
        self.arrived_at = 0.0
        """Time of arrival, kept by retraction too."""
        self.sampling: SamplingParams = submit.sampling
        self.namespace = b""
        self.deadline: float | None = None
        self.num_prompt = len(submit.prompt_ids)
        self.num_tokens = self.num_prompt + len(submit.generated_ids)
        self.max_tokens = min(self.num_prompt + submit.sampling.max_new_tokens, context_length)
        """Prompt plus output may not grow past this."""
        self._tokens: Int32Array = np.empty(self.num_tokens + 32, dtype=np.int32)
        self._tokens[: self.num_prompt] = submit.prompt_ids
        self._tokens[self.num_prompt : self.num_tokens] = submit.generated_ids
        self.num_reported = len(submit.generated_ids)
        """Output tokens that the peer has, or that are queued for it."""
        self.num_cached: int | None = None
        """Prompt tokens found in the cache at the first admission; None before it."""
        self.num_kv = 0
        self.num_preempted = 0
        self.known: Match | None = None
        """While waiting: what of it was cached when last looked."""
        self.leader: Req | None = None
        """While waiting: the running request that computes this one's next pages."""
        self.num_leader_pages = 0
        """Once the leader has cached so many, nothing of it is worth waiting for."""
        self.state = ReqState.WAITING
        self.slot: SlotIndex | None = None
        self.lease: KvLease | None = None

    @property
    def num_output(self) -> int:
        """Count output tokens, those of earlier attempts included."""
        return self.num_tokens - self.num_prompt

    @property
    def is_running(self) -> bool:
        """Tell whether it holds a slot and a lease."""
        return self.state is ReqState.PREFILLING or self.state is ReqState.DECODING

    def move(self, state: ReqState) -> None:
        """Change the state; an illegal move raises and changes nothing."""
        if state not in _LEGAL_MOVES[self.state]:
            message = f"request {self.request_id}: {self.state.value} to {state.value} is no move"
            raise InvariantError([message])
        self.state = state

    def append(self, token: int) -> None:
        """Add an output token."""
        if self.num_tokens == len(self._tokens):
            grown = np.empty(2 * self.num_tokens, dtype=np.int32)
            grown[: self.num_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1

    def tokens(self, first: int, end: int) -> Int32Array:
        """Copy tokens [first, end)."""
        return self._tokens[first:end].copy()

    def output(self, first: int) -> tuple[TokenId, ...]:
        """List output tokens from index ``first`` on."""
        ids: list[TokenId] = self._tokens[self.num_prompt + first : self.num_tokens].tolist()
        return tuple(ids)

    def last_token(self) -> TokenId:
        """Read the newest token."""
        return TokenId(int(self._tokens[self.num_tokens - 1]))

    def key(self, num_tokens: int, *, page_size: int, first_page: int = 0) -> PageKey:
        """Name the whole pages in the first ``num_tokens`` tokens, from ``first_page`` on."""
        return page_key(
            self.namespace, self._tokens[:num_tokens], page_size=page_size, first_page=first_page
        )

    def held(self) -> tuple[SlotIndex, KvLease]:
        """Give slot and lease of a running request."""
        if self.slot is None or self.lease is None:
            raise InvariantError([f"request {self.request_id} runs without slot or lease"])
        return self.slot, self.lease

    def usage(self) -> Usage:
        """Count its tokens so far."""
        return Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_output,
            cached_tokens=self.num_cached or 0,
        )
