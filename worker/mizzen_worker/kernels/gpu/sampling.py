"""Owns the choice of one token per row of logits on a GPU, without a sort; adjusts no logits.

The meaning is ``sampler/sampler.py``: greedy rows (temperature below the least normal float32, or
top-k 1) take the lowest id of the largest logit; others temperature, top-k, top-p, min-p, and then
one number of (seed, position) inverts the distribution of the kept tokens in the order of ids: the
block of 128 ids, then the id. A row's kind is derived here, from its parameters on the device.

``logits`` [n, vocab] float32, rows of contiguous values, any row stride. Everything is fixed by
shapes: nothing is asked of the device, and a captured call may be replayed with other contents. A
row's result depends on that row alone, to the last bit, whatever n is. Rows that are not valid
(NaN, or no finite largest logit) get token 0. Two launches: statistics of all blocks by programs
(group of blocks, row), then a program per row. Parameters may have any alignment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.gpu.base_two import LOG2E
from mizzen_worker.kernels.gpu.counter_random import uniform
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.token_filter import (
    choose_cut,
    find_tie,
    list_blocks,
    lowest_kept,
    sum_kept,
)
from mizzen_worker.kernels.gpu.token_weights import BLOCK, locate, weigh, weigh_kept

_BLOCK_SIZE = 128
_BLOCKS_PER_PROGRAM = 16
_STATISTICS_WARPS = 4
_CHOICE_WARPS = 8
_CHOICE_STAGES = 1
"""Of the loop over listed blocks; more take more registers than two programs a processor have."""
_LEAST = tl.constexpr(1.1754943508222875e-38)
"""The least normal float32."""
_PARAMETERS = ("temperatures", "top_k", "top_p", "min_p", "seeds", "positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawParameters:
    """One entry per row of logits, [n] each, contiguous, on the device; see ``SamplingBatch``."""

    temperatures: torch.Tensor
    """float32."""
    top_k: torch.Tensor
    """int32 or int64; 0 means no limit."""
    top_p: torch.Tensor
    """float32."""
    min_p: torch.Tensor
    """float32."""
    seeds: torch.Tensor
    """int64."""
    positions: torch.Tensor
    """int32 or int64."""

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order of the fields."""
        return (
            *(self.temperatures, self.top_k, self.top_p, self.min_p),
            *(self.seeds, self.positions),
        )


@triton.jit
def _scale(temperature):
    """What exp2 takes differences of logits times; finite and above 0 for any temperature."""
    return tl.maximum(LOG2E / tl.maximum(temperature, _LEAST), _LEAST)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "top_k"])
def _block_statistics_kernel(
    logits,
    temperatures,
    top_k,
    maxima,
    sums,
    vocab_size,
    row_stride,
    num_blocks,
    GROUP: tl.constexpr,
    HAS_TEMPERATURES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Maximum of each block (NaN where it has one), and sum of weights relative to it."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = tl.load(
        logits + row * row_stride + column, mask=column < vocab_size, other=-float("inf")
    )
    largest = tl.max(value, 1)
    has_nan = tl.max((value != value).to(tl.int32), 1)  # noqa: PLR0124 - only NaN differs
    noted = tl.where(has_nan != 0, float("nan"), largest)
    tl.store(maxima + row * num_blocks + block, noted, mask=block < num_blocks)
    is_drawn = True
    scale = LOG2E
    if HAS_TEMPERATURES:
        temperature = tl.load(temperatures + row)
        is_drawn = (temperature >= _LEAST) & (tl.load(top_k + row) != 1)
        scale = _scale(temperature)
    if is_drawn:
        # A block of minus infinity only weighs nothing, like its tokens.
        base = tl.where(largest > -float("inf"), largest, 0.0)
        total = tl.sum(weigh(value, base[:, None], scale), 1)
        tl.store(sums + row * num_blocks + block, total, mask=block < num_blocks)


@triton.jit(do_not_specialize_on_alignment=list(_PARAMETERS))
def _choice_kernel(
    logits,
    maxima,
    sums,
    listed,
    temperatures,
    top_k,
    top_p,
    min_p,
    seeds,
    positions,
    tokens,
    is_valid,
    vocab_size,
    row_stride,
    num_blocks,
    N: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row; N is a power of two from ``num_blocks`` on."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    maxima += row * num_blocks
    sums += row * num_blocks
    listed += row * num_blocks
    index = tl.arange(0, N)
    block_max = tl.load(maxima + index, mask=index < num_blocks, other=-float("inf"))
    largest = tl.max(block_max, 0)
    has_nan = tl.max((block_max != block_max).to(tl.int32), 0)  # noqa: PLR0124 - only NaN differs
    is_finite = (largest > -float("inf")) & (largest < float("inf")) & (has_nan == 0)

    temperature = tl.load(temperatures + row)
    k = tl.minimum(tl.load(top_k + row), vocab_size).to(tl.int32)
    p = tl.load(top_p + row)
    least_weight = tl.minimum(tl.load(min_p + row), 1.0)
    is_greedy = (temperature < _LEAST) | (k == 1)
    has_k = ((k > 0) & (k < vocab_size)).to(tl.int32)
    is_filtered = ((has_k != 0) | (p < 1.0) | (least_weight > 0.0)) & is_finite
    share = uniform(tl.load(seeds + row), tl.load(positions + row).to(tl.int64))

    # A greedy row draws from the tokens that equal the largest, with 0 for its number.
    scale = tl.where(is_greedy, 1.0, _scale(temperature))
    share = tl.where(is_greedy, 0.0, share)
    least_weight = tl.where(is_greedy, 0.0, least_weight)
    cut = tl.where(is_greedy, largest, -float("inf"))
    last_id = tl.where(is_greedy, vocab_size, -1)
    if is_greedy:
        weights = (block_max == largest).to(tl.float64)
    else:
        block_sum = tl.load(sums + index, mask=index < num_blocks, other=0.0)
        relative = tl.where(block_max > -float("inf"), weigh(block_max, largest, scale), 0.0)
        if is_filtered:
            total = tl.sum(block_sum * relative, 0)
            lower = lowest_kept(
                block_max,
                relative,
                largest,
                temperature,
                total,
                k,
                has_k,
                p,
                least_weight,
                vocab_size,
            )
            num_listed = list_blocks(block_max, lower, listed, num_blocks, N)
            cut, ties = choose_cut(
                logits,
                listed,
                num_listed,
                vocab_size,
                largest,
                scale,
                lower,
                total,
                k,
                has_k,
                p,
                STAGES,
            )
            if ties > 0:
                last_id = find_tie(
                    logits, listed, num_listed, num_blocks, vocab_size, sums, cut, ties, N
                )
            weights = sum_kept(
                logits,
                listed,
                num_listed,
                num_blocks,
                vocab_size,
                sums,
                largest,
                scale,
                cut,
                last_id,
                least_weight,
                IS_TIES=False,
                N=N,
            )
        else:
            weights = block_sum.to(tl.float64) * relative.to(tl.float64)

    block, before = locate(weights, 0.0, share * tl.sum(weights, 0), N)
    column = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + column, mask=column < vocab_size, other=-float("inf"))
    inside = weigh_kept(value, column, largest, scale, cut, last_id, least_weight)
    target = share * tl.sum(weights, 0)
    place, _before = locate(inside.to(tl.float64), before, target, BLOCK)
    token = tl.where(is_finite, block * BLOCK + place, 0)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(is_valid + row, is_finite)


@triton.jit
def _best_kernel(
    best_values, best_ids, tokens, is_valid, num_best, N: tl.constexpr, PDL: tl.constexpr
):
    """One row: the lowest id of those with the largest value."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, N)
    is_there = index < num_best
    value = tl.load(best_values + row * num_best + index, mask=is_there, other=-float("inf"))
    id_ = tl.load(best_ids + row * num_best + index, mask=is_there, other=0)
    largest = tl.max(value, 0)
    has_nan = tl.max((value != value).to(tl.int32), 0)  # noqa: PLR0124 - only NaN differs
    is_finite = (largest > -float("inf")) & (largest < float("inf")) & (has_nan == 0)
    best = tl.min(tl.where((value == largest) & is_there, id_, 0x7FFFFFFF), 0)
    tl.store(tokens + row, tl.where(is_finite, best, 0).to(tl.int64))
    tl.store(is_valid + row, is_finite)


def choose_best(
    best_values: torch.Tensor, best_ids: torch.Tensor, launch: Mapping[str, Any] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens [n] int64 and validity [n] bool, of ``HeadOutput``'s [n, blocks] best."""
    num_rows, num_best = best_values.shape
    _require(
        best_values.is_contiguous() and best_ids.is_contiguous(),
        "best values and ids must be contiguous",
    )
    _require(best_values.shape == best_ids.shape, "best values and ids must have one shape")
    tokens, is_valid = _outputs(num_rows, best_values.device)
    if num_rows:
        _best_kernel[(num_rows,)](
            best_values,
            best_ids,
            tokens,
            is_valid,
            num_best,
            N=triton.next_power_of_2(num_best),
            num_warps=4,
            **launch,
        )
    return tokens, is_valid


def block_statistics(
    logits: torch.Tensor,
    parameters: DrawParameters | None = None,
    launch: Mapping[str, Any] = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima and sums [n, blocks] float32 of blocks of 128 logits.

    Sums are of exp((logit - maximum) / temperature), with 1 for temperature where there are no
    parameters; of greedy rows they mean nothing. A maximum is NaN where its block has a NaN.
    """
    num_rows, vocab_size = logits.shape
    _require(logits.dtype == torch.float32, f"logits must be float32, not {logits.dtype}")
    _require(logits.stride(1) == 1, "a row of logits must be contiguous")
    num_blocks = triton.cdiv(vocab_size, _BLOCK_SIZE)
    # Each aligned, whatever the number of rows: kernels are compiled ahead for that.
    maxima, sums = (logits.new_empty((num_rows, num_blocks)) for _ in range(2))
    if num_rows:
        _block_statistics_kernel[(triton.cdiv(num_blocks, _BLOCKS_PER_PROGRAM), num_rows)](
            logits,
            logits if parameters is None else parameters.temperatures,
            logits if parameters is None else parameters.top_k,
            maxima,
            sums,
            vocab_size,
            logits.stride(0),
            num_blocks,
            GROUP=_BLOCKS_PER_PROGRAM,
            HAS_TEMPERATURES=parameters is not None,
            num_warps=_STATISTICS_WARPS,
            **launch,
        )
    return maxima, sums


def draw(
    logits: torch.Tensor, parameters: DrawParameters, launch: Mapping[str, Any] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [n] int64, always inside the vocabulary, and validity [n] bool; see the module."""
    num_rows, vocab_size = logits.shape
    for name, column in zip(_PARAMETERS, parameters.tensors(), strict=True):
        is_fit = column.shape == (num_rows,) and column.is_contiguous()
        _require(is_fit, f"{name}: shape {tuple(column.shape)}; give [{num_rows}], contiguous")
    tokens, is_valid = _outputs(num_rows, logits.device)
    if not num_rows:
        return tokens, is_valid
    maxima, sums = block_statistics(logits, parameters, launch)
    num_blocks = maxima.shape[1]
    _choice_kernel[(num_rows,)](
        logits,
        maxima,
        sums,
        torch.empty_like(maxima, dtype=torch.int32),
        *parameters.tensors(),
        tokens,
        is_valid,
        vocab_size,
        logits.stride(0),
        num_blocks,
        N=max(triton.next_power_of_2(num_blocks), _BLOCK_SIZE),
        STAGES=_CHOICE_STAGES,
        num_warps=_CHOICE_WARPS,
        **launch,
    )
    return tokens, is_valid


def _outputs(num_rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    return tokens, torch.empty(num_rows, dtype=torch.bool, device=device)


def _require(is_met: bool, message: str) -> None:  # noqa: FBT001 - a condition
    if not is_met:
        raise ValueError(message)
