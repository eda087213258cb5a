"""Owns the translation of a step's scores into what peers are told; pure, asks for none."""

from mizzen_worker.contracts.batch import TokenScores
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import TokenLogprob


def token_logprobs(
    scores: TokenScores, first: int, end: int, *, num_top: int
) -> tuple[TokenLogprob, ...]:
    """Translate entries [first, end), each with its ``num_top`` best alternatives."""
    if num_top == 0:
        return tuple(map(TokenLogprob, scores.logprobs[first:end].tolist()))
    tops = zip(
        scores.top_ids[first:end, :num_top].tolist(),
        scores.top_logprobs[first:end, :num_top].tolist(),
        strict=True,
    )
    return tuple(
        TokenLogprob(logprob, tuple(zip(map(TokenId, ids), logprobs, strict=True)))
        for logprob, (ids, logprobs) in zip(scores.logprobs[first:end].tolist(), tops, strict=True)
    )
