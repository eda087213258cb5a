"""What the fake runner's model is: tokens and scores as hashes of KV contents, and the reference.

The KV of a position mixes its token, its index and everything before it; a token and a score mix
all KV up to their position. ``expected`` computes a request's whole answer from its ids alone: no
pages, no batches, no scheduler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mizzen_worker.contracts.request import SamplingParams

_MASK = 2**64 - 1
PLACE = 0x9E3779B97F4A7C15
_TOKEN = 0x2545F4914F6CDD1D


def mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def context_of(kv: np.ndarray) -> int:
    """What positions 0.. with these KV contents amount to."""
    spread = np.arange(len(kv), dtype=np.uint64) * np.uint64(PLACE)
    return int(_mix_array(kv ^ spread).sum(dtype=np.uint64)) if len(kv) else 0


def extend_context(context: int, token: int, position: int) -> tuple[int, int]:
    """Return the KV of a position and the context that includes it."""
    kv = mix(context + token * _TOKEN + position * PLACE + 1)
    return kv, (context + mix(kv ^ (position * PLACE & _MASK))) & _MASK


@dataclass
class Counts:
    """What penalties look at: ids of prompt and output, and how often the output has each."""

    seen: set[int] = field(default_factory=set)
    output: int = 0

    @classmethod
    def of(cls, ids: Iterable[int], num_prompt: int) -> "Counts":
        counts = cls()
        for index, token in enumerate(ids):
            counts.add(token, is_output=index >= num_prompt)
        return counts

    def add(self, token: int, *, is_output: bool) -> None:
        self.seen.add(token)
        if is_output:
            self.output = (self.output + mix(token + 77)) & _MASK

    def effect(self, sampling: SamplingParams) -> int:
        if not sampling.has_penalty:
            return 0
        used = hash((sampling.repetition_penalty, sampling.frequency_penalty))
        return mix(used ^ self.output ^ sum(mix(token + 1) for token in self.seen))


def choose(
    context: int,
    position: int,
    sampling: SamplingParams,
    counts: Counts,
    *,
    vocab_size: int,
    forbidden: Sequence[int],
) -> int:
    """The token at ``position``, given the context of all positions before it."""
    drawn = 0 if sampling.temperature == 0 else mix(sampling.seed * PLACE + position)
    biased = mix(hash(sampling.logit_bias)) if sampling.logit_bias else 0
    token = mix(context ^ drawn ^ biased ^ counts.effect(sampling)) % vocab_size
    while token in forbidden:
        token = (token + 1) % vocab_size
    return token


def score(context: int, token: int) -> float:
    """A number that only the right context and the right token give; exact in float32."""
    return -(mix(context ^ (token + 5) * _TOKEN) % 4096) / 64


def best(context: int, num_top: int, vocab_size: int) -> list[tuple[int, float]]:
    ids = [mix(context + rank * PLACE) % vocab_size for rank in range(num_top)]
    return [(token, score(context, token)) for token in ids]


def stop_ids(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    return (*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids))


Scored = tuple[float, tuple[tuple[int, float], ...]]


@dataclass
class Expected:
    """A request's whole answer; scores are empty where none were asked for."""

    output: list[int] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    prompt_scores: list[Scored] = field(default_factory=list)


def expected(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    max_tokens: int = 10**9,
) -> Expected:
    """Compute a request's answer from its ids."""
    answer = Expected()
    wanted = sampling.logprobs
    first = wanted.prompt_start if wanted is not None else None

    def scored(context: int, token: int) -> Scored:
        assert wanted is not None
        return score(context, token), tuple(best(context, wanted.num_top, vocab_size))

    context, tokens = 0, list(prompt)
    stops = stop_ids(sampling, eos_token_ids)
    for position, token in enumerate(tokens):
        if first is not None and position >= max(first, 1):
            answer.prompt_scores.append(scored(context, token))
        _, context = extend_context(context, token, position)
    counts = Counts.of(prompt, len(prompt))
    output = answer.output
    while True:
        forbidden = stops if len(output) < sampling.min_new_tokens else ()
        token = choose(
            context, len(tokens), sampling, counts, vocab_size=vocab_size, forbidden=forbidden
        )
        output.append(token)
        tokens.append(token)
        counts.add(token, is_output=True)
        if wanted is not None:
            answer.scores.append(scored(context, token))
        is_full = len(output) >= sampling.max_new_tokens or len(tokens) >= max_tokens
        if is_full or (token in stops and len(output) > sampling.min_new_tokens):
            return answer
        _, context = extend_context(context, token, len(tokens) - 1)


def expected_output(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    max_tokens: int = 10**9,
) -> list[int]:
    """The tokens alone."""
    answer = expected(
        prompt,
        sampling,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        max_tokens=max_tokens,
    )
    return answer.output
