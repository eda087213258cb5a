"""Owns the rules a submitted request must meet; pure, takes nothing in itself."""

import math

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import Submit
from mizzen_worker.contracts.request import LogprobParams, SamplingParams

MAX_COUNT = 2**31 - 1
"""Largest number of tokens, and largest top-k, that is taken."""
MAX_TEMPERATURE = 1e6
"""At this one every token is as likely as any other; far larger ones fit into no float32."""
MAX_STOP_TOKEN_IDS = 256
"""The runner's table of stop ids is as wide as the longest list it was ever given."""
MAX_LOGIT_BIASES = 1024
"""Entries of one request's bias; the runner writes each into every row of logits."""
MAX_LOGIT_BIAS = 1e4
"""Far above any logit: more could change nothing."""
MAX_REPETITION_PENALTY = 1e3
MIN_REPETITION_PENALTY = 1e-3
MAX_TOP_LOGPROBS = 20
MAX_SALT_CHARACTERS = 1024


def refusal(submit: Submit, limits: RunnerLimits) -> str | None:
    """Say in one sentence why a request can never be served here, or None."""
    return (
        _size_refusal(submit, limits)
        or _envelope_refusal(submit)
        or _ids_refusal(submit, limits)
        or _sampling_refusal(submit.sampling)
        or _bias_refusal(submit.sampling.logit_bias, limits)
        or _logprobs_refusal(submit.sampling.logprobs, len(submit.prompt_ids), limits)
    )


def _size_refusal(submit: Submit, limits: RunnerLimits) -> str | None:
    max_tokens = max_request_tokens(limits)
    if not submit.prompt_ids:
        return "prompt_ids: empty; send at least one token"
    if len(submit.prompt_ids) >= max_tokens:
        return (
            f"prompt_ids: {len(submit.prompt_ids)} tokens leave no room for output in "
            f"{max_tokens} (context {limits.context_length}, KV memory "
            f"{limits.num_pages * limits.page_size}); send a shorter prompt"
        )
    return None


def _envelope_refusal(submit: Submit) -> str | None:
    """Everything that is neither tokens nor sampling."""
    if submit.deadline_s is not None and not 0 <= submit.deadline_s < math.inf:
        return f"deadline_s: {submit.deadline_s}; give seconds from now, 0 or more"
    if not -MAX_COUNT - 1 <= submit.priority <= MAX_COUNT:
        return f"priority: {submit.priority}; give a number from {-MAX_COUNT - 1} to {MAX_COUNT}"
    salt = submit.cache_salt
    if len(salt) > MAX_SALT_CHARACTERS:
        return f"cache_salt: {len(salt)} characters; give at most {MAX_SALT_CHARACTERS}"
    if any("\ud800" <= character <= "\udfff" for character in salt):
        return "cache_salt: holds half a surrogate pair; send valid Unicode text"
    return None


def _ids_refusal(submit: Submit, limits: RunnerLimits) -> str | None:
    """Compare as Python integers: a peer's number may be too large for any array."""
    stop_ids = submit.sampling.stop_token_ids
    if len(stop_ids) > MAX_STOP_TOKEN_IDS:
        return f"stop_token_ids: {len(stop_ids)} are given; give at most {MAX_STOP_TOKEN_IDS}"
    for name, ids in (
        ("prompt_ids", submit.prompt_ids),
        ("generated_ids", submit.generated_ids),
        ("stop_token_ids", stop_ids),
    ):
        if ids and (min(ids) < 0 or max(ids) >= limits.vocab_size):
            bad = next(token for token in ids if not 0 <= token < limits.vocab_size)
            return f"{name}: token {bad} is outside the vocabulary of {limits.vocab_size}"
    return None


def _sampling_refusal(sampling: SamplingParams) -> str | None:
    """Everything a runner writes into its tensors is in range, or the request ends here."""
    numbers: tuple[tuple[str, float, float, float], ...] = (
        ("max_new_tokens", sampling.max_new_tokens, 1, MAX_COUNT),
        ("min_new_tokens", sampling.min_new_tokens, 0, MAX_COUNT),
        ("top_k", sampling.top_k, 0, MAX_COUNT),
        ("temperature", sampling.temperature, 0, MAX_TEMPERATURE),
        ("top_p", sampling.top_p, 0, 1),
        ("min_p", sampling.min_p, 0, 1),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            MIN_REPETITION_PENALTY,
            MAX_REPETITION_PENALTY,
        ),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
    )
    for name, value, least, most in numbers:
        if not least <= value <= most:
            return f"{name}: {value}; give a number from {least} to {most:g}"
    return None


def _bias_refusal(bias: tuple[tuple[TokenId, float], ...], limits: RunnerLimits) -> str | None:
    if len(bias) > MAX_LOGIT_BIASES:
        return f"logit_bias: {len(bias)} entries are given; give at most {MAX_LOGIT_BIASES}"
    seen: set[TokenId] = set()
    for token, value in bias:
        if not 0 <= token < limits.vocab_size:
            return f"logit_bias: token {token} is outside the vocabulary of {limits.vocab_size}"
        if token in seen:
            return f"logit_bias: token {token} is given twice; give each token once"
        if not -MAX_LOGIT_BIAS <= value <= MAX_LOGIT_BIAS:
            most = f"{MAX_LOGIT_BIAS:g}"
            return f"logit_bias: {value} for token {token}; give a number from -{most} to {most}"
        seen.add(token)
    return None


def _logprobs_refusal(
    logprobs: LogprobParams | None, num_prompt: int, limits: RunnerLimits
) -> str | None:
    if logprobs is None:
        return None
    most = min(MAX_TOP_LOGPROBS, limits.vocab_size)
    if not 0 <= logprobs.num_top <= most:
        return f"logprobs.num_top: {logprobs.num_top}; give a number from 0 to {most}"
    start = logprobs.prompt_start
    if start is not None and not 0 <= start <= num_prompt:
        return f"logprobs.prompt_start: {start}; give an index from 0 to {num_prompt}"
    return None


def max_request_tokens(limits: RunnerLimits) -> int:
    """Longest prompt plus output that one request alone can reach."""
    return min(limits.context_length, limits.num_pages * limits.page_size)
