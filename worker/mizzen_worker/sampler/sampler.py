"""Owns the step from logits to token ids; holds no state.

Order: forbidden ids (EOS and stop ids below ``min_new_tokens``), greedy rows by argmax, other rows
temperature, top-k, top-p, min-p, then one uniform number inverts the distribution. Each row is
computed from its own values only, so its result does not depend on the batch around it.
"""

import torch

from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.sampler.counter_random import uniform
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_NUM_CANDIDATES = 256
"""Filtered rows look at this many best tokens first, and at all only when that is not enough."""


def _forbid(logits: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    """Logits with minus infinity at each row's forbidden ids."""
    padded = torch.nn.functional.pad(logits, (0, 1))
    ids = torch.where(forbidden < 0, logits.shape[1], forbidden)
    return padded.scatter(1, ids, float("-inf"))[:, :-1].contiguous()


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[n, m] float64 unnormalised probabilities, [n] uniforms to [n] column indices.

    The smallest column whose cumulative weight exceeds the uniform share of the total; columns of
    weight 0 are never chosen.
    """
    cumulative = weights.cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    last_positive = (weights > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(chosen, last_positive)


def _filtered_weights(
    ranked: torch.Tensor, totals: torch.Tensor, batch: SamplingBatch
) -> torch.Tensor:
    """Zero what top-k, top-p and min-p exclude.

    ``ranked`` [n, m] float64: exp(scaled logit - largest), descending. ``totals`` [n] float64: sum
    over the whole vocabulary of the same. top-p keeps a token while the share of those before it
    is below p; shares refer to what top-k left.
    """
    rank = torch.arange(ranked.shape[1], device=ranked.device)
    is_in_k = (batch.top_k[:, None] == 0) | (rank < batch.top_k[:, None])
    weights = torch.where(is_in_k, ranked, 0.0)
    mass = torch.where(batch.top_k == 0, totals, weights.sum(-1))
    before = weights.cumsum(-1) - weights
    is_in_p = (before < batch.top_p[:, None].double() * mass[:, None]) | (rank == 0)
    is_in_min_p = weights >= batch.min_p[:, None].double() * weights[:, :1]
    return torch.where(is_in_p & is_in_min_p, weights, 0.0)


def _take(batch: SamplingBatch, rows: torch.Tensor) -> SamplingBatch:
    return SamplingBatch(
        temperatures=batch.temperatures[rows],
        top_k=batch.top_k[rows],
        top_p=batch.top_p[rows],
        min_p=batch.min_p[rows],
        seeds=batch.seeds[rows],
        positions=batch.positions[rows],
        forbidden=batch.forbidden[rows],
        is_all_greedy=batch.is_all_greedy,
        has_forbidden=batch.has_forbidden,
    )


def _sample_filtered(
    scaled: torch.Tensor, batch: SamplingBatch, uniforms: torch.Tensor
) -> torch.Tensor:
    """Rows with top-k, top-p or min-p: ``scaled`` [n, vocab] float64 to [n] ids."""
    vocab_size = scaled.shape[1]
    num_candidates = min(_NUM_CANDIDATES, vocab_size)
    values, ids = scaled.topk(num_candidates, dim=-1)
    largest = values[:, :1]
    totals = (scaled - largest).exp().sum(-1)
    weights = _filtered_weights((values - largest).exp(), totals, batch)
    is_enough = (weights[:, -1] == 0) | (batch.top_k == num_candidates)
    chosen = ids.gather(1, _invert(weights, uniforms)[:, None]).squeeze(1)
    if num_candidates == vocab_size or bool(is_enough.all()):
        return chosen
    rest = (~is_enough).nonzero().squeeze(1)
    values, ids = scaled[rest].sort(dim=-1, descending=True, stable=True)
    weights = _filtered_weights((values - values[:, :1]).exp(), totals[rest], _take(batch, rest))
    chosen[rest] = ids.gather(1, _invert(weights, uniforms[rest])[:, None]).squeeze(1)
    return chosen


def _sample_random(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Rows with a temperature: [n, vocab] float32 to [n] ids."""
    scaled = logits.double() / batch.temperatures[:, None].double()
    uniforms = uniform(batch.seeds, batch.positions)
    is_filtered = (batch.top_k > 0) | (batch.top_p < 1) | (batch.min_p > 0)
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    plain = (~is_filtered).nonzero().squeeze(1)
    if len(plain):
        shifted = scaled[plain] - scaled[plain].amax(-1, keepdim=True)
        chosen[plain] = _invert(shifted.exp(), uniforms[plain])
    filtered = is_filtered.nonzero().squeeze(1)
    if len(filtered):
        chosen[filtered] = _sample_filtered(
            scaled[filtered], _take(batch, filtered), uniforms[filtered]
        )
    return chosen


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Choose one id per row: [n, vocab] float32 to [n] int64.

    Raises ``DeviceError`` when a row's logits hold NaN or no finite value.
    """
    if batch.has_forbidden:
        logits = _forbid(logits, batch.forbidden)
    best, greedy = logits.max(dim=-1)
    if not bool(torch.isfinite(best).all()):
        message = "logits are not finite: the weights are damaged or the device is faulty"
        raise DeviceError(message)
    if batch.is_all_greedy:
        return greedy
    rows = (batch.temperatures > 0).nonzero().squeeze(1)
    greedy[rows] = _sample_random(logits[rows], _take(batch, rows))
    return greedy
