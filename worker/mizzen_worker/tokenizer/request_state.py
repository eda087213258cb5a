"""Owns one live request of the tokenizer side: its phases, its ids, what its client has not read.

Owns no sockets and decides nothing about workers. Invariants: ``output_ids`` only grow and are the
base of resume; where log-probabilities are wanted, ``output_logprobs`` is as long, and
``prompt_logprobs`` grows without a gap from ``first_scored``; ``num_fed`` >= ``num_texted`` >=
``num_taken``; one phase at a time, moved only by ``move``; after the final output nothing is added.
"""

import asyncio
import enum
import math
from array import array
from dataclasses import dataclass, field
from typing import cast

from mizzen_worker.contracts.errors import InvariantError, WorkerError
from mizzen_worker.contracts.ids import Generation, RequestId, TokenId
from mizzen_worker.contracts.messages import PromptLogprobs, TokenEvent, TokenLogprob
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.routing.prefix_memory import PromptPrefix


class Phase(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    """On no worker: just made, handed back, or its worker was lost."""
    RUNNING = "running"
    """Submitted to a worker."""
    ENDING = "ending"
    """No more tokens are wanted; the last text or the worker's count is awaited."""
    FINISHED = "finished"


_NUM_NEW_TEXTS = 256

_NOT_YET = Generation(-1)
"""Before the first attempt, which is number 0."""

_MOVES = {
    Phase.WAITING: {Phase.RUNNING, Phase.ENDING, Phase.FINISHED},
    Phase.RUNNING: {Phase.WAITING, Phase.ENDING, Phase.FINISHED},
    Phase.ENDING: {Phase.FINISHED},
    Phase.FINISHED: set[Phase](),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateInput:
    """A checked request, ready for any worker.

    ``deadline_s`` is seconds from its acceptance: what is not complete by then ends as it is, with
    kind DEADLINE. ``stop_regex`` are patterns that ``check_stop_patterns`` took. Log-probabilities
    are asked for in ``sampling``.
    """

    prompt_ids: tuple[TokenId, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    deadline_s: float | None = None
    skip_special_tokens: bool = True
    keep_stop: bool = False
    priority: int = 0
    cache_salt: str = ""
    log_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOutput:
    """How it ended; ``matched`` is the stop token, or the stop string or pattern."""

    kind: FinishKind
    usage: Usage
    matched: TokenId | str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What is new since the last one; ``final`` is set on the last.

    ``logprobs`` has one entry per token of ``token_ids`` where they were asked for, else none.
    ``prompt_logprobs`` come whole, with the first output: those of the prompt from index
    ``LogprobParams.prompt_start`` on (1 where that is 0). A stop token that ends a request is
    among ``token_ids``; its text is not part of ``text``.
    """

    text: str
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    final: FinalOutput | None = None


@dataclass(slots=True, kw_only=True)
class RequestState:
    """Mutable; owned by the TokenizerManager, read by the HTTP handler through ``take``."""

    request_id: RequestId
    wanted: GenerateInput
    prefix: PromptPrefix
    submitted_s: float
    deadline_at_s: float = math.inf
    phase: Phase = Phase.WAITING
    generation: Generation = _NOT_YET
    worker: str | None = None
    resume_identity: str | None = None
    tried: set[str] = field(default_factory=set)
    num_lost: int = 0
    """Attempts lost since its last new token."""
    phase_since_s: float = 0.0
    output_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    worker_finish: FinishReason | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    is_text_open: bool = False
    is_feed_outstanding: bool = False
    num_fed: int = 0
    num_texted: int = 0
    num_taken: int = 0
    is_prompt_taken: bool = False
    num_text_chars: int = 0
    stopped_by: str | None = None
    final: FinalOutput | None = None
    error: WorkerError | None = None
    _output_ids: "array[int]" = field(default_factory=lambda: array("i"))
    _old_text: list[str] = field(default_factory=list)
    _new_text: list[str] = field(default_factory=list)
    """The newest pieces; many become one of ``_old_text``, which a slow client may leave long."""
    _has_changed: bool = False
    _waiter: asyncio.Future[bool] | None = None

    @property
    def log_fields(self) -> dict[str, str]:
        """Name it in a log line, as its client does and as workers do."""
        log_id = self.wanted.log_id or self.request_id
        return {"request_id": log_id, "engine_request_id": self.request_id}

    def move(self, phase: Phase, now_s: float) -> None:
        """Change phase; raises ``InvariantError`` for a move that is not in the table."""
        if phase not in _MOVES[self.phase]:
            raise InvariantError([f"{self.request_id}: {self.phase} cannot become {phase}"])
        self.phase = phase
        self.phase_since_s = now_s
        if phase is not Phase.RUNNING:
            self.worker = None

    @property
    def first_scored(self) -> int | None:
        """Index of the first prompt token that is scored; None when none is."""
        logprobs = self.wanted.sampling.logprobs
        if logprobs is None or logprobs.prompt_start is None:
            return None
        return max(1, logprobs.prompt_start)

    @property
    def num_output(self) -> int:
        """Tokens recorded."""
        return len(self._output_ids)

    def output_ids(self, first: int = 0, end: int | None = None) -> tuple[TokenId, ...]:
        """Give recorded tokens [first, end)."""
        return cast("tuple[TokenId, ...]", tuple(self._output_ids[first:end]))

    def record(self, event: TokenEvent) -> int | None:
        """Add what is new of an event; give how many tokens, or None when something is missing."""
        num_known = self.num_output
        num_old = num_known - event.start
        if num_old < 0:
            return None
        fresh = event.token_ids[num_old:]
        if self.wanted.sampling.logprobs is not None:
            if len(event.logprobs) != len(event.token_ids):
                return None
            self.output_logprobs.extend(event.logprobs[num_old:])
        self._output_ids.extend(fresh)
        return len(fresh)

    def record_prompt(self, scores: PromptLogprobs) -> bool:
        """Add what is new of a stretch; False when something is missing before it."""
        if self.first_scored is None:
            return True
        num_old = self.first_scored + len(self.prompt_logprobs) - scores.start
        if num_old < 0:
            return False
        self.prompt_logprobs.extend(scores.logprobs[num_old:])
        return True

    def truncate(self, num_tokens: int) -> None:
        """Drop what lies behind a stop string."""
        del self._output_ids[num_tokens:]
        del self.output_logprobs[num_tokens:]

    def add_text(self, text: str, num_tokens: int) -> None:
        """Note text that its client may read, after ``num_tokens`` of the output."""
        self.num_texted = num_tokens
        self.num_text_chars += len(text)
        self._new_text.append(text)
        if len(self._new_text) == _NUM_NEW_TEXTS:
            self._old_text.append("".join(self._new_text))
            self._new_text.clear()
        self._note_change()

    def finish(self, final: FinalOutput, now_s: float) -> None:
        """End with a result."""
        self.move(Phase.FINISHED, now_s)
        self.final = final
        self._note_change()

    def fail(self, error: WorkerError, now_s: float) -> None:
        """End with an error."""
        self.move(Phase.FINISHED, now_s)
        self.error = error
        self._note_change()

    def final_of(
        self,
        kind: FinishKind,
        *,
        matched: TokenId | str | None = None,
        message: str | None = None,
    ) -> FinalOutput:
        """Make the final output with what has been counted."""
        usage = Usage(
            prompt_tokens=len(self.wanted.prompt_ids),
            completion_tokens=self.num_output,
            cached_tokens=self.cached_tokens,
        )
        return FinalOutput(kind=kind, usage=usage, matched=matched, message=message)

    def take(self) -> Output | None:
        """Take what is new; None when nothing is; raises the error the request ended with."""
        self._has_changed = False
        text = "".join([*self._old_text, *self._new_text])
        self._old_text.clear()
        self._new_text.clear()
        token_ids = self.output_ids(self.num_taken, self.num_texted)
        if self.error is not None and not text and not token_ids:
            raise self.error
        if not text and not token_ids and self.final is None:
            return None
        logprobs = tuple(self.output_logprobs[self.num_taken : self.num_texted])
        prompt_logprobs = () if self.is_prompt_taken else tuple(self.prompt_logprobs)
        self.is_prompt_taken = True
        self.num_taken = self.num_texted
        return Output(
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            final=self.final if self.error is None else None,
        )

    async def changed(self, timeout_s: float) -> bool:
        """Wait until there may be something new; False when the time is up. For one reader."""
        if self._has_changed or self.error is not None:
            return True
        # Not asyncio.timeout around an Event: this is done once a token, at a third of the cost.
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, _answer, waiter, False)  # noqa: FBT003 - no keywords
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _note_change(self) -> None:
        self._has_changed = True
        if self._waiter is not None:
            _answer(self._waiter, True)  # noqa: FBT003 - as the timer calls it


def _answer(waiter: asyncio.Future[bool], is_changed: bool) -> None:  # noqa: FBT001 - by a timer
    if not waiter.done():
        waiter.set_result(is_changed)


def finish_of_complete(state: RequestState, end_ids: frozenset[TokenId]) -> FinishReason | None:
    """Tell how a request ended whose worker was lost between its last token and saying so."""
    sampling = state.wanted.sampling
    num_tokens = state.num_output
    if num_tokens >= sampling.max_new_tokens:
        return FinishReason(kind=FinishKind.LENGTH)
    ends = frozenset(sampling.stop_token_ids)
    ends |= frozenset() if sampling.ignore_eos else end_ids
    last = state.output_ids(num_tokens - 1) if num_tokens > sampling.min_new_tokens else ()
    if last and last[0] in ends:
        return FinishReason(kind=FinishKind.STOP, matched=last[0])
    return None
