"""Owns the way from checked fields of any API to requests for a worker; owns no routes.

Choices of one request differ in their seeds only: choice 0 has the request's own, the others' are
made of that and the index, so that a choice is the same however many are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.detokenizer.stop_patterns import check_stop_patterns
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.request_fields import (
    MAX_PROMPT_SCORES,
    MAX_SUBREQUESTS,
    MAX_TIMEOUT_S,
    Extras,
    Prompt,
    Sampling,
)
from mizzen_worker.http_api.validation import at_most, shown
from mizzen_worker.tokenizer.request_state import GenerateInput

TIMEOUT_HEADER = "x-request-timeout"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What APIs name differently; ``prefix`` stands before the names of sampling fields."""

    prompt_ids: tuple[TokenId, ...]
    limit: int
    limit_field: str
    min_tokens: int | None = None
    min_field: str = "min_tokens"
    temperature: float | None = None
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    logprobs: LogprobParams | None = None
    prefix: str = ""


def make_input(
    engine: FrontEngine, given: Sampling, extras: Extras, ask: Ask, timeout_s: float | None
) -> GenerateInput:
    """Make a request; raises ``RequestError`` naming the field."""
    stop_ids_field = f"{ask.prefix}stop_token_ids"
    patterns = _strings(given.stop_regex)
    check_stop_patterns(patterns, field=f"{ask.prefix}stop_regex")
    return GenerateInput(
        prompt_ids=ask.prompt_ids,
        sampling=SamplingParams(
            max_new_tokens=ask.limit,
            min_new_tokens=at_most(
                ask.min_tokens, ask.limit, field=ask.min_field, limit_field=ask.limit_field
            ),
            seed=engine.seed_of(ask.seed),
            temperature=1.0 if ask.temperature is None else ask.temperature,
            top_p=1.0 if given.top_p is None else given.top_p,
            top_k=max(0, given.top_k or 0),
            min_p=given.min_p or 0.0,
            stop_token_ids=engine.encoder.check_ids(
                given.stop_token_ids or [], field=stop_ids_field
            ),
            ignore_eos=bool(given.ignore_eos),
            repetition_penalty=(
                1.0 if given.repetition_penalty is None else given.repetition_penalty
            ),
            frequency_penalty=given.frequency_penalty or 0.0,
            presence_penalty=given.presence_penalty or 0.0,
            logit_bias=_bias(engine, given.logit_bias or {}, f"{ask.prefix}logit_bias"),
            logprobs=ask.logprobs,
        ),
        stop=_strings(ask.stop),
        stop_regex=patterns,
        skip_special_tokens=given.skip_special_tokens is not False,
        keep_stop=bool(given.no_stop_trim or given.include_stop_str_in_output),
        deadline_s=timeout_s,
        priority=extras.priority or 0,
        cache_salt=extras.cache_salt or "",
    )


async def prompts_of(
    engine: FrontEngine, given: Prompt, *, field: str
) -> list[tuple[TokenId, ...]]:
    """Give the tokens of a prompt, or of each of several, once a worker can tell what fits."""
    await engine.wait_for_worker()
    if isinstance(given, str):
        return [await engine.encode(given, field=field)]
    found: list[tuple[TokenId, ...]] = []
    ids: list[int] = []
    texts: list[str] = []
    for one in given:
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, list):
            found.append(engine.encoder.check_ids(one, field=field))
        else:
            ids.append(one)
    if texts:
        return await engine.encode_all(texts, field=field)
    return found or [engine.encoder.check_ids(ids, field=field)]


def choices_of(wanted: GenerateInput, num_choices: int) -> list[GenerateInput]:
    """Give the request once for each choice."""
    seed = wanted.sampling.seed
    return [
        replace(
            wanted,
            sampling=msgspec.structs.replace(wanted.sampling, seed=choice_seed(seed, index)),
        )
        for index in range(num_choices)
    ]


def choice_seed(seed: int, index: int) -> int:
    """Give the seed of a choice: 63 bits that look unrelated to those of its neighbours."""
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 1


def check_num_subrequests(num_prompts: int, num_choices: int, *, field: str) -> None:
    """Raise ``RequestError`` when a request would become too many."""
    if num_prompts * num_choices > MAX_SUBREQUESTS:
        msg = (
            f"{field} is {num_choices}, which makes {num_prompts * num_choices} answers for "
            f"{num_prompts} prompts; ask for at most {MAX_SUBREQUESTS} in one request"
        )
        raise RequestError(msg, field=field)


def check_num_prompt_scores(inputs: Sequence[GenerateInput], *, field: str) -> None:
    """Raise ``RequestError`` when the prompts of a request would have too many scores."""
    num_scores = 0
    for one in inputs:
        logprobs = one.sampling.logprobs
        if logprobs is not None and logprobs.prompt_start is not None:
            num_scores += (len(one.prompt_ids) - logprobs.prompt_start) * (1 + logprobs.num_top)
    if num_scores > MAX_PROMPT_SCORES:
        msg = (
            f"{field} asks for {num_scores} log-probabilities of prompt tokens, alternatives and "
            f"choices counted; ask for at most {MAX_PROMPT_SCORES} in one request"
        )
        raise RequestError(msg, field=field)


def timeout_of(extras: Extras, headers: Mapping[str, str]) -> float | None:
    """Give the seconds a request may take: the shorter of what body and header say."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return extras.timeout_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        msg = (
            f"the header {TIMEOUT_HEADER} is {shown(text)}; give seconds above 0, at most "
            f"{MAX_TIMEOUT_S:.0f}"
        )
        raise RequestError(msg, field=TIMEOUT_HEADER)
    return seconds if extras.timeout_s is None else min(seconds, extras.timeout_s)


def _strings(given: Sequence[str] | str | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _bias(
    engine: FrontEngine, given: Mapping[str, float], field: str
) -> tuple[tuple[TokenId, float], ...]:
    ids = [int(name) for name in given]
    engine.encoder.check_ids(ids, field=field)
    merged = dict(zip(ids, given.values(), strict=True))
    return tuple((TokenId(token_id), bias) for token_id, bias in sorted(merged.items()))
