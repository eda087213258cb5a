"""Owns the record of one request and the table of its legal moves; owns no queue and no page.

Intervals of a request's tokens (prompt and output in one array)::

    [0, num_kv)           launched: KV is in the lease's pages, or will be when its steps have run
    [num_kv, num_tokens)  known, still to be computed; exactly 1 token while decoding and settled
    [num_tokens, num_kv]  while decoding in flight: sampled on the device, unknown here
    [0, num_prompt)       prompt; the rest is output, never shortened, kept by retraction

Invariants: a slot and an open lease are held exactly in PREFILLING and DECODING; the state changes
through ``move`` only; ``order`` is given once, so a retracted request keeps its age.
"""

import enum
from array import array
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import cast

import numpy as np

from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import PageKey, page_key
from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.batch import Int32Array, Int64Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import Generation, PeerId, RequestId, SlotIndex, TokenId
from mizzen_worker.contracts.messages import Submit, TokenLogprob
from mizzen_worker.contracts.request import SamplingParams, Usage
from mizzen_worker.scheduler.policies import Standing


class ReqState(enum.Enum):
    """Where a request is in its life; the container that holds it follows from this."""

    WAITING = "waiting"
    """In the waiting queue: new, or retracted."""
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


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingMemo:
    """What was found out about a request while it waits; it only saves finding it out again."""

    key: PageKey | None = None
    """Its tokens that may be cached: they stay the same while it waits."""
    match: Match | None = None
    """What of it was cached when last looked."""
    leader: "Req | None" = None
    """The running request that computes this one's next pages."""
    num_leader_pages: int = 0
    """Once the leader has cached so many, nothing of it is worth waiting for."""


@dataclass(slots=True, eq=False)
class Req:
    """One attempt of one request on this worker."""

    submit: InitVar[Submit]
    _: KW_ONLY
    peer: PeerId
    order: int
    """Arrival number: the age that every fair choice uses."""
    context_length: InitVar[int]
    priority: InitVar[int] = 0
    """0 where the policy does not use it."""
    arrived_at: float = 0.0
    """Times are of the loop's clock; this one is kept by retraction too."""
    deadline: float | None = None
    namespace: bytes = b""
    needs_cpu_token: bool = False
    """Its next step may only be planned when its last token is known here."""

    request_id: RequestId = field(init=False)
    generation: Generation = field(init=False)
    log_id: str = field(init=False)
    traceparent: str = field(init=False)
    sampling: SamplingParams = field(init=False)
    standing: Standing = field(init=False)
    cache_priority: int = field(init=False)
    """Whose pages stay longer, where the cache's order asks for it."""
    num_prompt: int = field(init=False)
    max_tokens: int = field(init=False)
    """Prompt plus output may not grow past this."""
    num_reported: int = field(init=False)
    """Output tokens that the peer has, or that are queued for it."""
    next_score: int = field(init=False)
    """Index of the next prompt token to be scored; ``num_prompt`` when none is."""
    _tokens: "array[int]" = field(init=False)
    _logprobs: list[TokenLogprob] = field(init=False, default_factory=list)

    state: ReqState = field(init=False, default=ReqState.WAITING)
    memo: WaitingMemo = field(init=False, default_factory=WaitingMemo)
    slot: SlotIndex | None = field(init=False, default=None)
    lease: KvLease | None = field(init=False, default=None)
    kv_lengths: Int64Array | None = field(init=False, default=None)
    """The slot book's ``num_kv``, while it runs."""
    num_cached: int | None = field(init=False, default=None)
    """Prompt tokens found in the cache at the first admission; None before it."""
    num_prefill: int = field(init=False, default=0)
    """Tokens that were known when it was last admitted: their KV is cached in the end."""
    num_preempted: int = field(init=False, default=0)
    started_at: float | None = field(init=False, default=None)
    """When its first step was launched."""
    first_token_at: float | None = field(init=False, default=None)

    def __post_init__(self, submit: Submit, context_length: int, priority: int) -> None:
        self.request_id = submit.request_id
        self.generation = submit.generation
        self.log_id = submit.log_id or submit.request_id
        self.traceparent = submit.traceparent
        self.sampling = submit.sampling
        self.standing = Standing(
            order=self.order, priority=priority, max_output=submit.sampling.max_new_tokens
        )
        self.cache_priority = submit.priority
        self.num_prompt = len(submit.prompt_ids)
        self.max_tokens = min(self.num_prompt + submit.sampling.max_new_tokens, context_length)
        self.num_reported = len(submit.generated_ids)
        self.next_score = _first_score(submit)
        self._tokens = array("i", submit.prompt_ids)
        self._tokens.extend(submit.generated_ids)

    @property
    def num_tokens(self) -> int:
        """Count its tokens as far as they are known here: those in flight are not."""
        return len(self._tokens)

    @property
    def num_output(self) -> int:
        """Count output tokens, those of earlier attempts included."""
        return len(self._tokens) - self.num_prompt

    @property
    def num_kv(self) -> int:
        """Count positions that have KV or get it from steps in flight."""
        if self.slot is None or self.kv_lengths is None:
            return 0
        return int(self.kv_lengths[self.slot])

    @property
    def num_matchable(self) -> int:
        """Count tokens whose KV may come from the cache.

        One at least is computed to give the next one, and so is what prompt scores need.
        """
        limit = self.num_tokens - 1
        if self.next_score < self.num_prompt:
            limit = min(limit, self.next_score - 1)
        return limit

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
        self._tokens.append(token)

    def add_logprob(self, logprob: TokenLogprob) -> None:
        """Keep the score of the newest token until it is reported."""
        self._logprobs.append(logprob)

    def take_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Hand out the scores of tokens that are reported now."""
        if not self._logprobs:
            return ()
        logprobs = tuple(self._logprobs)
        self._logprobs.clear()
        return logprobs

    def tokens(self, first: int, end: int) -> Int32Array:
        """Copy tokens [first, end)."""
        return np.array(self._tokens[first:end], dtype=np.int32)

    def output(self, first: int) -> tuple[TokenId, ...]:
        """List output tokens from index ``first`` on."""
        return tuple(cast("list[TokenId]", self._tokens[self.num_prompt + first :].tolist()))

    def last_token(self) -> TokenId:
        """Read the newest token."""
        return TokenId(self._tokens[-1])

    def key(self, num_tokens: int, *, page_size: int, first_page: int = 0) -> PageKey:
        """Name the whole pages in the first ``num_tokens`` tokens, from ``first_page`` on."""
        return page_key(
            self.namespace, self.tokens(0, num_tokens), page_size=page_size, first_page=first_page
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


def _first_score(submit: Submit) -> int:
    """An attempt that goes on after output was heard: its scores came before that output."""
    wanted = submit.sampling.logprobs
    if wanted is None or wanted.prompt_start is None or submit.generated_ids:
        return len(submit.prompt_ids)
    return min(max(wanted.prompt_start, 1), len(submit.prompt_ids))
