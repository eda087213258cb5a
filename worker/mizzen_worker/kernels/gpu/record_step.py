"""Owns the last kernel of a captured decode step: note each row's token and tell the host.

It chooses no token beyond taking the best of the head's block maxima; what it notes is what
``SlotState.record`` says. The outcome goes straight into page-locked memory, at the place in the
ring that ``stage_step`` put into ``current``: int64 per row, the sampled id in the low 32 bits
(``NO_TOKEN`` where the request had ended, ``INVALID_TOKEN`` without finite logits), and 1 above
them where the request has ended. Padding rows change and tell nothing.

One program per row. Slots of rows that are not padding are distinct. A dependent launch reads what
a slot is before it waits: that was written by ``stage_step`` or earlier, and the kernel behind
``stage_step`` lets no other begin before all of that has ended.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from mizzen_worker.kernels.gpu.launching import PLAIN, dependent

_MOST_BLOCKS = 16_384
"""Looked at together, all loads at once: more would not fit into registers."""
_BLOCKS_OF_A_WARP = 256
_MOST_WARPS = 16
_NO_TOKEN = tl.constexpr(-1)
_INVALID_TOKEN = tl.constexpr(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTensors:
    """What is read and written beside the choice; all on the device but for ``outcome``.

    ``row_slots``, ``positions`` [rows] int64 (positions of the tokens that went in); ``current`` as
    in ``StagedRows``; by slot ``finished`` bool, ``last_tokens`` int64, ``max_tokens`` int32,
    ``stop_ids`` [slots, a power of two] int32, -1 where there is none; ``outcome``
    [places, max_rows] int64, page-locked.
    """

    row_slots: torch.Tensor
    positions: torch.Tensor
    current: torch.Tensor
    finished: torch.Tensor
    last_tokens: torch.Tensor
    max_tokens: torch.Tensor
    stop_ids: torch.Tensor
    outcome: torch.Tensor


@triton.jit
def _look_up(
    row,
    row_slots,
    positions,
    current,
    finished,
    max_tokens,
    stop_ids,
    outcome,
    place_stride,
    STOPS: tl.constexpr,
):
    """What a row's slot is: (slot, is no padding, had ended, is at its last, stops, target)."""
    slot = tl.load(row_slots + row)
    position = tl.load(positions + row)
    place = tl.load(current).to(tl.int64)
    is_own = row < tl.load(current + 1)
    had_ended = tl.load(finished + slot) != 0
    is_last = position + 2 >= tl.load(max_tokens + slot)
    stops = tl.load(stop_ids + slot * STOPS + tl.arange(0, STOPS))
    return slot, is_own, had_ended, is_last, stops, outcome + place * place_stride + row


@triton.jit
def end_of(token, is_valid, had_ended, is_last, stops):
    """What a row's token means: (is taken, has ended, id to report); see ``SlotState.record``."""
    is_taken = is_valid & (had_ended == 0)
    is_stop = tl.max((stops == token).to(tl.int32), axis=0) > 0
    has_ended = had_ended | (is_valid == 0) | is_last | is_stop
    reported = tl.where(is_taken, token, tl.where(had_ended, _NO_TOKEN, _INVALID_TOKEN))
    return is_taken, has_ended, reported


@triton.jit
def _note(found, token, is_valid, finished, last_tokens):
    slot, is_own, had_ended, is_last, stops, target = found
    is_taken, has_ended, reported = end_of(token, is_valid, had_ended, is_last, stops)
    tl.store(finished + slot, has_ended, mask=is_own)
    tl.store(last_tokens + slot, token, mask=is_own & is_taken)
    word = (has_ended.to(tl.int64) << 32) | (reported.to(tl.int64) & 0xFFFFFFFF)
    tl.store(target, word, mask=is_own)


@triton.jit(do_not_specialize=["num_blocks"])
def _record_best(
    best_values,
    best_ids,
    row_slots,
    positions,
    current,
    finished,
    last_tokens,
    max_tokens,
    stop_ids,
    outcome,
    num_blocks,
    values_stride,
    ids_stride,
    place_stride,
    BLOCKS: tl.constexpr,
    STOPS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    found = _look_up(
        row,
        row_slots,
        positions,
        current,
        finished,
        max_tokens,
        stop_ids,
        outcome,
        place_stride,
        STOPS,
    )
    if PDL:
        gdc_wait()
    values_row = best_values + row.to(tl.int64) * values_stride
    best = float("-inf")
    best_block = 0
    for first in tl.range(0, num_blocks, BLOCKS):
        blocks = first + tl.arange(0, BLOCKS)
        values = tl.load(values_row + blocks, mask=blocks < num_blocks, other=float("-inf"))
        # A row with a NaN is as useless as one with infinity, and that is above all others.
        values = tl.where(values != values, float("inf"), values)  # noqa: PLR0124 - only NaN is
        largest = tl.max(values, axis=0)
        block = tl.min(tl.where(values == largest, blocks, 0x7FFFFFFF), axis=0)
        best_block = tl.where(largest > best, block, best_block)
        best = tl.maximum(best, largest)
    token = tl.load(best_ids + row.to(tl.int64) * ids_stride + best_block).to(tl.int64)
    is_valid = (best > float("-inf")) & (best < float("inf"))
    _note(found, token, is_valid, finished, last_tokens)


@triton.jit
def _record_chosen(
    tokens,
    validity,
    row_slots,
    positions,
    current,
    finished,
    last_tokens,
    max_tokens,
    stop_ids,
    outcome,
    place_stride,
    STOPS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    found = _look_up(
        row,
        row_slots,
        positions,
        current,
        finished,
        max_tokens,
        stop_ids,
        outcome,
        place_stride,
        STOPS,
    )
    if PDL:
        gdc_wait()
    token = tl.load(tokens + row)
    is_valid = tl.load(validity + row) != 0
    _note(found, token, is_valid, finished, last_tokens)


def record_best(
    best_values: torch.Tensor,
    best_ids: torch.Tensor,
    tensors: RecordTensors,
    *,
    is_dependent: bool = False,
) -> None:
    """Greedy rows: [rows, blocks] float32 and int32, as in ``HeadOutput``; of equals the lowest.

    Ids rise from block to block, so the first of the best blocks has the lowest one.
    """
    num_rows, num_blocks = best_values.shape
    _require_shapes(tensors, num_rows)
    if best_ids.shape != best_values.shape or 1 not in (best_values.stride(1), num_blocks):
        message = f"block maxima of {tuple(best_values.shape)}, ids of {tuple(best_ids.shape)}"
        raise ValueError(message)
    block = min(triton.next_power_of_2(num_blocks), _MOST_BLOCKS)
    _record_best[(num_rows,)](
        best_values,
        best_ids,
        *_arguments(tensors),
        num_blocks,
        best_values.stride(0),
        best_ids.stride(0),
        tensors.outcome.stride(0),
        BLOCKS=block,
        STOPS=tensors.stop_ids.shape[1],
        num_warps=max(1, min(_MOST_WARPS, block // _BLOCKS_OF_A_WARP)),
        **(dependent() if is_dependent else PLAIN),
    )


def record_chosen(
    tokens: torch.Tensor,
    is_valid: torch.Tensor,
    tensors: RecordTensors,
    *,
    is_dependent: bool = False,
) -> None:
    """Rows whose tokens are chosen: [rows] int64 inside the vocabulary, and [rows] bool."""
    _require_shapes(tensors, len(tokens))
    if len(is_valid) != len(tokens) or not (tokens.is_contiguous() and is_valid.is_contiguous()):
        message = f"{len(tokens)} tokens and {len(is_valid)} marks of validity"
        raise ValueError(message)
    _record_chosen[(len(tokens),)](
        tokens,
        is_valid,
        *_arguments(tensors),
        tensors.outcome.stride(0),
        STOPS=tensors.stop_ids.shape[1],
        num_warps=1,
        **(dependent() if is_dependent else PLAIN),
    )


def _arguments(tensors: RecordTensors) -> tuple[torch.Tensor, ...]:
    return (
        tensors.row_slots,
        tensors.positions,
        tensors.current,
        tensors.finished,
        tensors.last_tokens,
        tensors.max_tokens,
        tensors.stop_ids,
        tensors.outcome,
    )


def _require_shapes(tensors: RecordTensors, num_rows: int) -> None:
    most = min(len(tensors.row_slots), len(tensors.positions), tensors.outcome.shape[1])
    width = tensors.stop_ids.shape[1]
    is_even = tensors.stop_ids.is_contiguous() and width == triton.next_power_of_2(width)
    if num_rows > most or not is_even:
        message = f"{num_rows} rows and {width} stop ids a slot; room is for {most} rows"
        raise ValueError(message)
