"""Owns the decision what a new token means for its request; pure, ends nothing itself."""

from collections.abc import Collection

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams
from mizzen_worker.scheduler.req import Req

_BY_LENGTH = FinishReason(kind=FinishKind.LENGTH)


def finish_after_last_token(req: Req, *, eos_token_ids: Collection[TokenId]) -> FinishReason | None:
    """Decide whether the request's newest output token ends it; the device decides by the same.

    Order: EOS and stop tokens (only as the token after ``min_new_tokens`` others),
    ``max_new_tokens`` or the context length.
    """
    token = req.last_token()
    sampling = req.sampling
    if _is_stop(token, sampling, eos_token_ids) and req.num_output > sampling.min_new_tokens:
        return FinishReason(kind=FinishKind.STOP, matched=token)
    if req.num_tokens >= req.max_tokens:
        return _BY_LENGTH
    return None


def _is_stop(token: TokenId, sampling: SamplingParams, eos_token_ids: Collection[TokenId]) -> bool:
    if token in sampling.stop_token_ids:
        return True
    return not sampling.ignore_eos and token in eos_token_ids
