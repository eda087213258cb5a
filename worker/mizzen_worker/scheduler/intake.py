"""Owns the rules a submitted request must meet; pure, takes nothing in itself."""

import numpy as np

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.messages import Submit


def refusal(submit: Submit, limits: RunnerLimits) -> str | None:
    """Say in one sentence why a request can never be served here, or None."""
    max_tokens = max_request_tokens(limits)
    num_tokens = len(submit.prompt_ids) + len(submit.generated_ids)
    if not submit.prompt_ids:
        return "prompt_ids: empty; send at least one token"
    if submit.sampling.max_new_tokens < 1:
        return f"max_new_tokens: {submit.sampling.max_new_tokens}; ask for at least 1"
    if len(submit.prompt_ids) >= max_tokens:
        return (
            f"prompt_ids: {len(submit.prompt_ids)} tokens leave no room for output in "
            f"{max_tokens} (context {limits.context_length}, KV memory "
            f"{limits.num_pages * limits.page_size}); send a shorter prompt"
        )
    ids = np.fromiter((*submit.prompt_ids, *submit.generated_ids), np.int64, num_tokens)
    if int(ids.min()) < 0 or int(ids.max()) >= limits.vocab_size:
        bad = next(int(token) for token in ids if not 0 <= token < limits.vocab_size)
        return f"prompt_ids: token {bad} is outside the vocabulary of {limits.vocab_size}"
    return None


def max_request_tokens(limits: RunnerLimits) -> int:
    """Longest prompt plus output that one request alone can reach."""
    return min(limits.context_length, limits.num_pages * limits.page_size)
