"""Owns log-probabilities of tokens, and the best ones in order, on a GPU; chooses no token.

The meaning is ``sampler/scores.py``. ``logits`` [n, vocab] float32, rows of contiguous values.
Statistics of blocks of 128 ids come first (``sampling.block_statistics``), then a program per row:
it takes the normaliser from them, and finds the best tokens as a top-k filter does, without a
sort. A row's result depends on that row alone. Of a row without a finite largest logit, or with a
NaN, log-probabilities are NaN and the best ids mean nothing, but are in range.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.gpu.base_two import LOG2E
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.sampling import block_statistics
from mizzen_worker.kernels.gpu.token_filter import (
    CHUNK,
    find_cut,
    find_tie,
    just_below,
    list_blocks,
    load_listed,
    lowest_kept,
)
from mizzen_worker.kernels.gpu.token_weights import BLOCK, weigh

MAX_BEST = 128
"""Most tokens that are put in order: each is compared with each."""


@triton.jit
def _gather_best(
    logits, listed, num_blocks, vocab_size, sums, maxima, largest, count, ids, N: tl.constexpr
):
    """Write the best ``count`` ids in the order of ids."""
    # A top-k filter only: no top-p, no min-p.
    is_one = tl.full((), 1, tl.int32)
    one = tl.full((), 1.0, tl.float32)
    none = tl.full((), 0.0, tl.float32)
    lower = lowest_kept(maxima, maxima, largest, one, one, count, is_one, one, none, vocab_size)
    num_listed = list_blocks(maxima, lower, listed, num_blocks, N)
    low, high, count_low, count_high, _mass_low, _mass_high = find_cut(
        logits,
        listed,
        num_listed,
        vocab_size,
        largest,
        LOG2E,
        just_below(lower),
        count,
        IS_MASS=False,
        STAGES=1,
    )
    # Where fewer are above minus infinity, the others equal it.
    ties = count - count_high
    is_whole = (low < high) & (count_low - count_high <= ties)
    cut = tl.where(is_whole, low, high)
    last_id = tl.full((), -1, tl.int32)
    if (ties > 0) & (is_whole == 0):
        last_id = find_tie(logits, listed, num_listed, num_blocks, vocab_size, sums, cut, ties, N)
    written = tl.full((), 0, tl.int32)
    for start in range(0, num_listed, CHUNK):
        _place, _block, column, value = load_listed(logits, listed, start, num_listed, vocab_size)
        is_best = (value > cut) | ((value == cut) & (column <= last_id))
        is_best = (is_best & (column < vocab_size)).to(tl.int32)
        in_block = tl.sum(is_best, 1)
        before = written + tl.cumsum(in_block, 0) - in_block
        place = before[:, None] + tl.cumsum(is_best, 1) - 1
        tl.store(ids + place, column, mask=(is_best != 0) & (place < count))
        written += tl.sum(in_block, 0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["num_best"], do_not_specialize_on_alignment=["targets"])
def _score_kernel(
    logits,
    maxima,
    sums,
    listed,
    gathered,
    targets,
    logprobs,
    best_ids,
    best_logprobs,
    num_best,
    vocab_size,
    row_stride,
    num_blocks,
    N: tl.constexpr,
    BEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row; N is a power of two from ``num_blocks`` on, BEST one from ``num_best`` on, or 0."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    maxima += row * num_blocks
    sums += row * num_blocks
    index = tl.arange(0, N)
    block_max = tl.load(maxima + index, mask=index < num_blocks, other=-float("inf"))
    block_sum = tl.load(sums + index, mask=index < num_blocks, other=0.0)
    largest = tl.max(block_max, 0)
    has_nan = tl.max((block_max != block_max).to(tl.int32), 0)  # noqa: PLR0124 - only NaN differs
    is_finite = (largest > -float("inf")) & (largest < float("inf")) & (has_nan == 0)
    base = tl.where(is_finite, largest, 0.0)
    relative = tl.where(block_max > -float("inf"), weigh(block_max, base, LOG2E), 0.0)
    log_total = tl.log(tl.sum(block_sum * relative, 0))
    log_total = tl.where(is_finite, log_total, float("nan"))
    target = tl.load(logits + tl.load(targets + row))
    tl.store(logprobs + row, (target - base) - log_total)
    if BEST:
        ids = gathered + row * BEST
        if is_finite:
            _gather_best(
                logits,
                listed + row * num_blocks,
                num_blocks,
                vocab_size,
                sums,
                block_max,
                largest,
                num_best,
                ids,
                N,
            )
        rank = tl.arange(0, BEST)
        is_there = rank < num_best
        is_gathered = rank < tl.where(is_finite, num_best, 0)
        id_ = tl.load(ids + rank, mask=is_gathered, other=0)
        id_ = tl.where(is_finite, id_, rank)
        value = tl.load(logits + id_, mask=is_there, other=-float("inf"))
        is_before = (value[None, :] > value[:, None]) | (
            (value[None, :] == value[:, None]) & (id_[None, :] < id_[:, None])
        )
        place = tl.sum((is_before & is_there[None, :]).to(tl.int32), 1)
        place = tl.where(is_finite, place, rank)
        is_there &= place < num_best
        tl.store(best_ids + row * num_best + place, id_, mask=is_there)
        score = (value - base) - log_total
        tl.store(best_logprobs + row * num_best + place, score, mask=is_there)


def score_rows(
    logits: torch.Tensor, targets: torch.Tensor, num_best: int, launch: Mapping[str, Any] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-softmax [n] float32 at ``targets`` [n] int64; best ids [n, k] int32 and theirs [n, k].

    k is ``num_best``, at most ``MAX_BEST`` and the vocabulary; best means largest, then lowest id.
    """
    num_rows, vocab_size = logits.shape
    if not 0 <= num_best <= min(MAX_BEST, vocab_size):
        message = f"{num_best} best of {vocab_size} tokens; give at most {MAX_BEST}"
        raise ValueError(message)
    if targets.shape != (num_rows,) or not targets.is_contiguous():
        message = f"targets: shape {tuple(targets.shape)}; give [{num_rows}], contiguous"
        raise ValueError(message)
    logprobs = logits.new_empty(num_rows)
    best_ids = torch.empty((num_rows, num_best), dtype=torch.int32, device=logits.device)
    best_logprobs = logits.new_empty((num_rows, num_best))
    if not num_rows:
        return logprobs, best_ids, best_logprobs
    maxima, sums = block_statistics(logits, launch=launch)
    num_blocks = maxima.shape[1]
    bound = (32 if num_best <= 32 else MAX_BEST) if num_best else 0
    _score_kernel[(num_rows,)](
        logits,
        maxima,
        sums,
        torch.empty_like(maxima, dtype=torch.int32),
        best_ids.new_empty((num_rows, bound)),
        targets,
        logprobs,
        best_ids,
        best_logprobs,
        num_best,
        vocab_size,
        logits.stride(0),
        num_blocks,
        N=max(triton.next_power_of_2(num_blocks), BLOCK.value),
        BEST=bound,
        num_warps=8,
        **launch,
    )
    return logprobs, best_ids, best_logprobs
