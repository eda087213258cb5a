"""Owns log-probabilities of tokens under the model's own distribution; chooses no token."""

from dataclasses import dataclass

import torch

from mizzen_worker.kernels.gpu.launching import dependent
from mizzen_worker.kernels.gpu.scoring import MAX_BEST, score_rows
from mizzen_worker.sampler.ranking import best_tokens

_ROWS_AT_ONCE = 64
"""Bound of the rows whose normalisers are computed in one call, for their memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """``TokenScores`` on the device."""

    logprobs: torch.Tensor
    """[n] float32."""
    top_ids: torch.Tensor
    """[n, k] int32."""
    top_logprobs: torch.Tensor
    """[n, k] float32."""

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three of them, in the order of the fields."""
        return self.logprobs, self.top_ids, self.top_logprobs


def score(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Scores:
    """Log-softmax of raw [n, vocab] float32 logits at ``targets`` [n] int64 and at the best.

    Waits for nothing on a CUDA device.
    """
    if logits.device.type != "cpu" and num_top <= MAX_BEST:
        return score_on_gpu(logits, targets, num_top)
    parts = [
        _score(rows, ids, num_top)
        for rows, ids in zip(
            torch.split(logits, _ROWS_AT_ONCE), torch.split(targets, _ROWS_AT_ONCE), strict=True
        )
    ]
    return join_scores(parts)


def score_on_gpu(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Scores:
    """``score`` by the GPU's kernels, at most ``MAX_BEST`` alternatives."""
    num_best = min(num_top, logits.shape[1])
    logprobs, ids, best = score_rows(logits, targets.contiguous(), num_best, dependent())
    return Scores(logprobs=logprobs, top_ids=ids, top_logprobs=best)


def join_scores(parts: list[Scores]) -> Scores:
    """One after the other; at least one."""
    columns = zip(*(part.tensors() for part in parts), strict=True)
    logprobs, top_ids, top_logprobs = (torch.cat(column) for column in columns)
    return Scores(logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)


def _score(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Scores:
    # A GPU adds a row up in an order that depends on the number of rows: float64 hides it.
    wide = logits if logits.device.type == "cpu" else logits.double()
    totals = wide.logsumexp(-1, keepdim=True).float()
    if num_top == 0:
        values, ids = logits[:, :0], targets.new_empty((len(targets), 0))
    else:
        values, ids = best_tokens(logits, min(num_top, logits.shape[1]))
    return Scores(
        logprobs=(logits.gather(1, targets[:, None]) - totals).squeeze(1),
        top_ids=ids.int(),
        top_logprobs=values - totals,
    )
