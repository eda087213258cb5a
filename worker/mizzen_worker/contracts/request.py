"""Owns what a request asks of a worker and how it can end; owns no state of a running request.

Everything here crosses a wire. User text never does: stop strings stay beside the detokenizer, a
worker sees token ids only.
"""

import enum

import msgspec

from mizzen_worker.contracts.ids import TokenId


class LogprobParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which log-probabilities are wanted: natural logarithms of the model's own distribution.

    They are taken before bias, penalties, temperature and every filter. ``num_top`` alternatives
    come with each token. ``prompt_start`` is the index of the first prompt token that is scored
    too; index 0 has nothing before it and never is. None scores output only.
    """

    num_top: int
    prompt_start: int | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen and when the request ends.

    ``temperature`` 0 means greedy. ``top_k`` 0 means no limit. ``top_p`` and ``min_p`` are
    probabilities, applied after the temperature in the order top-k, top-p, min-p.

    ``logit_bias`` pairs (id, bias) are added to the logits first. Then the penalties:
    ``repetition_penalty`` (1 is none) divides positive and multiplies negative logits of every id
    in prompt or output; ``frequency_penalty`` is subtracted once per occurrence in the output,
    ``presence_penalty`` once when there is any. Greedy rows take the best of what results.
    ``min_new_tokens`` forbids EOS and stop ids before that many tokens.

    ``seed`` is
    always set by the time a worker sees it: the tokenizer side draws one for an unseeded request,
    because a request without a seed could not be resumed on another worker. The random number for
    position ``p`` (index in prompt + output) is a pure function of ``(seed, p)``.
    """

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    logprobs: LogprobParams | None = None

    @property
    def has_penalty(self) -> bool:
        """Tell whether choosing a token needs a count of those before it."""
        is_repetition = self.repetition_penalty != 1
        return is_repetition or self.frequency_penalty != 0 or self.presence_penalty != 0


class FinishKind(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    """EOS, a stop token or (decided at the detokenizer) a stop string."""
    LENGTH = "length"
    """``max_new_tokens`` or the context length was reached."""
    ABORT = "abort"
    """The client left, or an administrator ended it."""
    DEADLINE = "deadline"
    """Its deadline passed before it was complete."""
    ERROR = "error"
    """This request cannot be served; ``message`` says why."""


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended; ``matched`` is the stop token, ``message`` says more to a person."""

    kind: FinishKind
    matched: TokenId | None = None
    message: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request; ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
