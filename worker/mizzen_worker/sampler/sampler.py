"""Owns the step from logits to token ids; holds no state.

Order: forbidden ids (EOS and stop ids below ``min_new_tokens``), greedy rows by argmax, other rows
temperature, top-k, top-p, min-p, then one uniform number inverts the distribution. Each row is
computed from its own values only, so its result does not depend on the batch around it.
"""

import torch

from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.sampler.counter_random import uniform
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_BLOCK = 128
_NUM_CANDIDATES = 256
"""Filtered rows look at this many best tokens first, then at 16 times as many, and so on."""


def _forbid(logits: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    """Logits with minus infinity at each row's forbidden ids."""
    padded = torch.nn.functional.pad(logits, (0, 1))
    ids = torch.where(forbidden < 0, logits.shape[1], forbidden)
    return padded.scatter(1, ids, float("-inf"))[:, :-1].contiguous()


def _targets(uniforms: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Shares of the totals, always below them: [n] float64."""
    return torch.minimum(uniforms * totals, torch.nextafter(totals, torch.zeros_like(totals)))


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[n, m] float64 unnormalised probabilities, [n] uniforms to [n] column indices.

    The smallest column whose cumulative weight exceeds the uniform share of the total; a column of
    weight 0 does not raise the sum and is never chosen.
    """
    cumulative = weights.cumsum(-1)
    targets = _targets(uniforms, cumulative[:, -1])
    return torch.searchsorted(cumulative, targets[:, None], right=True).squeeze(1)


def _invert_wide(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Like ``_invert`` for [n, vocab] float32: first the block of columns, then the column."""
    num_blocks = -(-weights.shape[1] // _BLOCK)
    padded = torch.nn.functional.pad(weights, (0, num_blocks * _BLOCK - weights.shape[1]))
    blocks = padded.view(len(padded), num_blocks, _BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    targets = _targets(uniforms, ends[:, -1])[:, None]
    chosen = torch.searchsorted(ends, targets, right=True)
    starts = torch.where(chosen > 0, ends.gather(1, (chosen - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), chosen.squeeze(1)].double()
    cumulative = inside.cumsum(-1) + starts
    # The block's end and this sum may differ in their last bits: stay on a column with weight.
    reachable = torch.minimum(targets, torch.nextafter(cumulative[:, -1:], starts))
    column = torch.searchsorted(cumulative, reachable, right=True)
    return (chosen * _BLOCK + column).squeeze(1)


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


def _ranked(values: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """exp of scaled logits relative to the largest, the first column: float64."""
    shifted = (values - values[:, :1]).double() / batch.temperatures[:, None].double()
    return shifted.exp()


def _sample_filtered(
    logits: torch.Tensor,
    totals: torch.Tensor,
    batch: SamplingBatch,
    uniforms: torch.Tensor,
    num_candidates: int = _NUM_CANDIDATES,
) -> torch.Tensor:
    """Rows with top-k, top-p or min-p: [n, vocab] float32 to [n] ids."""
    vocab_size = logits.shape[1]
    num_taken = min(num_candidates, vocab_size)
    values, ids = logits.topk(num_taken, dim=-1)
    weights = _filtered_weights(_ranked(values, batch), totals, batch)
    chosen = ids.gather(1, _invert(weights, uniforms)[:, None]).squeeze(1)
    is_enough = (weights[:, -1] == 0) | (batch.top_k == num_taken)
    if num_taken == vocab_size or bool(is_enough.all()):
        return chosen
    rest = (~is_enough).nonzero().squeeze(1)
    some = _take(batch, rest)
    more = num_candidates * 16
    chosen[rest] = _sample_filtered(logits[rest], totals[rest], some, uniforms[rest], more)
    return chosen


def _sample_random(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Rows with a temperature: [n, vocab] float32 to [n] ids."""
    uniforms = uniform(batch.seeds, batch.positions)
    is_filtered = (batch.top_k > 0) | (batch.top_p < 1) | (batch.min_p > 0)
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.div_(batch.temperatures[:, None]).exp_()
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    plain = (~is_filtered).nonzero().squeeze(1)
    if len(plain):
        chosen[plain] = _invert_wide(weights[plain], uniforms[plain])
    filtered = is_filtered.nonzero().squeeze(1)
    if len(filtered):
        totals = weights[filtered].sum(-1, dtype=torch.float64)
        chosen[filtered] = _sample_filtered(
            logits[filtered], totals, _take(batch, filtered), uniforms[filtered]
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
    # One row after the other stays in a CPU's cache; a GPU wants them all at once.
    for some in torch.split(rows, 1) if logits.device.type == "cpu" else (rows,):
        greedy[some] = _sample_random(logits[some], _take(batch, some))
    return greedy
