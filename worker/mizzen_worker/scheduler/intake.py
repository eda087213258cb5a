"""Owns the rules a submitted request must meet; pure, takes nothing in itself."""

import math

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.messages import Submit
from mizzen_worker.contracts.request import SamplingParams

MAX_COUNT = 2**31 - 1
"""Largest number of tokens, and largest top-k, that is taken."""
MAX_TEMPERATURE = 1e6
"""At this one every token is as likely as any other; far larger ones fit into no float32."""
MAX_STOP_TOKEN_IDS = 256
"""The runner's table of stop ids is as wide as the longest list it was ever given."""


def refusal(submit: Submit, limits: RunnerLimits) -> str | None:
    """Say in one sentence why a request can never be served here, or None."""
    return (
        _size_refusal(submit, limits)
        or _ids_refusal(submit, limits)
        or _sampling_refusal(submit.sampling)
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
    if submit.deadline_s is not None and not 0 <= submit.deadline_s < math.inf:
        return f"deadline_s: {submit.deadline_s}; give seconds from now, 0 or more"
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
    )
    for name, value, least, most in numbers:
        if not least <= value <= most:
            return f"{name}: {value}; give a number from {least} to {most:g}"
    return None


def max_request_tokens(limits: RunnerLimits) -> int:
    """Longest prompt plus output that one request alone can reach."""
    return min(limits.context_length, limits.num_pages * limits.page_size)
