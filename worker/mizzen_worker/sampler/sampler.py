"""Owns the step from logits to token ids; holds no state.

Order: bias, penalties and forbidden ids (``adjustments.py``), greedy rows by argmax (the lowest of
equal ids), other rows temperature, top-k, top-p, min-p, then one uniform number inverts the
distribution of the kept tokens in the order of their ids. Each row is computed from its own values
only, so its result does not depend on the batch around it. The meaning is written here in torch,
for a CPU; the native kernels and those of a GPU choose the same tokens, up to the rounding of sums.
On a CUDA device nothing waits for the device.
"""

from dataclasses import dataclass

import torch

from mizzen_worker.sampler.adjustments import adjust
from mizzen_worker.sampler.counter_random import uniform
from mizzen_worker.sampler.gpu_choice import choose_on_gpu
from mizzen_worker.sampler.native_choice import choose_natively
from mizzen_worker.sampler.ranking import best_tokens
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_BLOCK = 128
_NUM_CANDIDATES = 256
"""Filtered rows look at this many best tokens first, then at 16 times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The choice of every row."""

    tokens: torch.Tensor
    """[n] int64, always inside the vocabulary."""
    is_valid: torch.Tensor
    """[n] bool: the row's largest logit is finite and none is NaN; else its token means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """Parameters of the rows of one group, [n] each; see ``SamplingBatch``."""

    temperatures: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniforms: torch.Tensor


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
    # Rows without finite logits end outside: they are marked, and must only stay in range.
    chosen = torch.searchsorted(ends, targets, right=True).clamp(max=num_blocks - 1)
    starts = ends.gather(1, (chosen - 1).clamp(min=0)).masked_fill_(chosen == 0, 0.0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), chosen.squeeze(1)].double()
    cumulative = inside.cumsum(-1) + starts
    # The block's end and this sum may differ in their last bits: stay on a column with weight.
    reachable = torch.minimum(targets, torch.nextafter(cumulative[:, -1:], starts))
    column = torch.searchsorted(cumulative, reachable, right=True)
    return (chosen * _BLOCK + column).squeeze(1).clamp(max=weights.shape[1] - 1)


def _filtered_weights(ranked: torch.Tensor, totals: torch.Tensor, draw: _Draw) -> torch.Tensor:
    """Zero what top-k, top-p and min-p exclude.

    ``ranked`` [n, m] float64: exp(scaled logit - largest), descending. ``totals`` [n] float64: sum
    over the whole vocabulary of the same. top-p keeps a token while the share of those before it
    is below p; shares refer to what top-k left.
    """
    rank = torch.arange(ranked.shape[1], device=ranked.device)
    is_beyond_k = (draw.top_k[:, None] > 0) & (rank >= draw.top_k[:, None])
    weights = ranked.masked_fill(is_beyond_k, 0.0)
    mass = torch.where(draw.top_k == 0, totals, weights.sum(-1))
    before = weights.cumsum(-1) - weights
    is_in_p = (before < draw.top_p[:, None].double() * mass[:, None]) | (rank == 0)
    is_in_min_p = weights >= draw.min_p[:, None].double() * weights[:, :1]
    return weights.masked_fill(~(is_in_p & is_in_min_p), 0.0)


def _take(batch: SamplingBatch, uniforms: torch.Tensor, rows: torch.Tensor) -> _Draw:
    return _Draw(
        temperatures=batch.temperatures[rows],
        top_k=batch.top_k[rows],
        top_p=batch.top_p[rows],
        min_p=batch.min_p[rows],
        uniforms=uniforms[rows],
    )


def _weights(logits: torch.Tensor, draw: _Draw) -> torch.Tensor:
    """exp of scaled logits relative to the largest: [n, vocab] float32."""
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.div_(draw.temperatures[:, None]).exp_()


def _draw_plain(logits: torch.Tensor, draw: _Draw) -> torch.Tensor:
    """Rows drawn from the whole vocabulary: [n, vocab] float32 to [n] ids."""
    return _invert_wide(_weights(logits, draw), draw.uniforms)


def _draw_filtered(logits: torch.Tensor, draw: _Draw) -> torch.Tensor:
    """Rows with top-k, top-p or min-p: [n, vocab] float32 to [n] ids."""
    totals = _weights(logits, draw).sum(-1, dtype=torch.float64)
    vocab_size = logits.shape[1]
    num_taken = min(_NUM_CANDIDATES, vocab_size)
    while True:
        values, ids = best_tokens(logits, num_taken)
        scaled = (values - values[:, :1]).double() / draw.temperatures[:, None].double()
        weights = _filtered_weights(scaled.exp(), totals, draw)
        if num_taken == vocab_size or _is_whole(weights, draw):
            ascending, order = ids.sort(-1)
            columns = _invert(weights.gather(1, order), draw.uniforms).clamp(max=num_taken - 1)
            return ascending.gather(1, columns[:, None]).squeeze(1)
        num_taken = min(16 * num_taken, vocab_size)


def _is_whole(weights: torch.Tensor, draw: _Draw) -> bool:
    """Tell whether no row keeps a token beyond the candidates.

    With a top-k beyond them not even the mass that top-p refers to is known.
    """
    is_within_k = draw.top_k <= weights.shape[1]
    return bool(torch.where(draw.top_k > 0, is_within_k, weights[:, -1] == 0).all())


def _choose(logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``choose_natively`` does, in torch."""
    best, tokens = logits.max(dim=-1)
    groups = ((batch.plain_rows, _draw_plain), (batch.filtered_rows, _draw_filtered))
    if any(len(rows) for rows, _ in groups):
        uniforms = uniform(batch.seeds, batch.positions)
        # One row after the other stays in the cache.
        for rows, draw in groups:
            for some in torch.split(rows, 1) if len(rows) else ():
                tokens[some] = draw(logits[some], _take(batch, uniforms, some))
    return tokens, best.isfinite()


def sample(
    logits: torch.Tensor, batch: SamplingBatch, instruction_set: str | None = None
) -> Sampled:
    """Choose one id per row of [n, vocab] float32 logits, which are adjusted in place.

    ``instruction_set`` is one of the native library's, for logits on the CPU; None takes torch.
    """
    adjust(logits, batch, instruction_set)
    if logits.device.type != "cpu":
        tokens, is_valid = choose_on_gpu(logits, batch)
    elif instruction_set is None:
        tokens, is_valid = _choose(logits, batch)
    else:
        tokens, is_valid = choose_natively(logits, batch, instruction_set)
    return Sampled(tokens=tokens, is_valid=is_valid)
