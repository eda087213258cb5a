"""Owns the closed union of messages between tokenizer processes and workers; owns no sockets.

One worker binds a ROUTER, each tokenizer process connects a DEALER. Map-encoded structs carry a
``type`` tag; ``TokenEvent`` is array-encoded because there is one per request and step. A change
that an older peer cannot read raises ``WIRE_VERSION``; a worker refuses an ``Attach`` of another
version, a tokenizer such a ``Hello``.

Back-pressure: a tokenizer process grants credit (number of token events it is ready to take) with
``Attach`` and every ``Heartbeat``; a worker that has used it up holds that tokenizer's events back,
coalesced per request, and goes on stepping. A full waiting queue is a ``HandBack``.
"""

import enum

import msgspec

from mizzen_worker.contracts.ids import Generation, InstanceId, RequestId, TokenId
from mizzen_worker.contracts.request import FinishReason, SamplingParams, Usage

WIRE_VERSION = 2


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal for a request to go on elsewhere; ``resume_identity`` is its digest.

    ``fingerprint`` covers the weights' content, ``tokenizer`` the vocabulary.
    """

    served_name: str
    fingerprint: str
    tokenizer: str
    resume_identity: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker can take, in requests and tokens."""

    max_running_requests: int
    max_queued_requests: int
    kv_tokens: int
    context_length: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a worker is, for choosing one."""

    running_requests: int
    queued_requests: int
    kv_tokens_used: int
    is_draining: bool
    queued_tokens: int = 0
    """Known tokens that still have to be computed before the queue is empty."""


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """Tokenizer to worker, first on a connection; answered by ``Hello`` or a refusing ``Reply``."""

    wire_version: int
    instance_id: InstanceId
    credit: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Worker to tokenizer: who I am and what I can take."""

    wire_version: int
    instance_id: InstanceId
    identity: ModelIdentity
    capacity: Capacity
    load: Load


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Tokenizer to worker: run this request.

    ``generated_ids`` are the tokens an earlier attempt already produced: they count as output
    (towards ``max_new_tokens`` and penalties), are not sent again, and the next event starts at
    index ``len(generated_ids)``. ``deadline_s`` is seconds from receipt; None means no deadline.
    ``priority`` is for workers with the policy of that name: higher is more urgent.
    """

    request_id: RequestId
    generation: Generation
    prompt_ids: tuple[TokenId, ...]
    sampling: SamplingParams
    generated_ids: tuple[TokenId, ...] = ()
    deadline_s: float | None = None
    priority: int = 0
    cache_salt: str = ""
    log_id: str = ""
    """The client's own id, for log lines and administrators; several requests may share one."""
    traceparent: str = ""
    """Place in a trace, of the W3C's form; empty when it is not traced."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Tokenizer to worker: stop this request (exact id, no prefix). Answered by ``Finished``."""

    request_id: RequestId
    generation: Generation


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token, and the best alternatives, the likeliest first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one request; ``start`` is the index of the first one in the output.

    ``logprobs`` has one entry per token where the request asked for them, else none.
    """

    request_id: RequestId
    generation: Generation
    start: int
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Scores of a stretch of the prompt; ``start`` is the index of the first one in the prompt.

    Stretches of one attempt follow each other without a gap and precede its first output token.
    """

    request_id: RequestId
    generation: Generation
    start: int
    logprobs: tuple[TokenLogprob, ...]


class TokenEvents(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Worker to tokenizer: everything new for that tokenizer since the last step."""

    events: tuple[TokenEvent, ...]
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """Worker to tokenizer: the one terminal event of an attempt; follows its last tokens."""

    request_id: RequestId
    generation: Generation
    reason: FinishReason
    usage: Usage


class HandBackCause(enum.Enum):
    """Why a worker gives a request back unfinished."""

    QUEUE_FULL = "queue_full"
    DRAINING = "draining"
    RESTARTING = "restarting"


class HandBack(msgspec.Struct, frozen=True, kw_only=True, tag="hand_back"):
    """Worker to tokenizer: not (or no longer) mine; every token produced was sent before this.

    ``retry_after_s`` comes with ``QUEUE_FULL``: how long a request of the queue's end is expected
    to wait.
    """

    request_id: RequestId
    generation: Generation
    cause: HandBackCause
    retry_after_s: float | None = None


class ControlVerb(enum.Enum):
    """Administrative requests of a tokenizer process or the launcher."""

    FLUSH_CACHE = "flush_cache"
    DRAIN = "drain"
    DESCRIBE = "describe"
    ABORT = "abort"
    """Argument ``request_id``, or none for every request; facts: ``ended``, how many that was."""


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """To a worker: do or tell something; answered by the ``Reply`` of the same ``control_id``."""

    control_id: int
    verb: ControlVerb
    arguments: dict[str, str] = {}


Fact = str | int | float | bool
Facts = dict[str, Fact]


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """Worker's answer to a ``Control``, or (``control_id`` 0) a refusal of an ``Attach``."""

    control_id: int
    is_ok: bool
    message: str
    facts: Facts = {}


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Both ways, once a second. ``credit`` (tokenizer to worker) adds to what is left of it."""

    credit: int = 0
    load: Load | None = None


ToWorker = Attach | Submit | Abort | Control | Heartbeat
ToTokenizer = Hello | TokenEvents | Finished | HandBack | Reply | Heartbeat
