"""Owns the record of a step's tokens where the step was not captured; chooses no token.

Contract. Of every sampled row: ``slots``, ``positions`` (of the chosen tokens), ``max_tokens`` [n]
int64 and ``stop_ids`` [n, width] int64, -1 where there is none; ``tokens`` [n] int64 and
``is_valid`` [n] bool. Slots are distinct. ``finished`` bool and ``last_tokens`` int64 are by slot.
The result [2, n] int64, and what changes, are those of ``SlotState.record``: in torch they take
twenty launches, one after the other, between the last kernel of a prefill and its token.

One program per row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.record_step import end_of

_LEAST_STOPS = 16
"""Looked at together: so that few stop ids and some run the same code."""
_VIEWS = ("slots", "positions", "max_tokens", "stop_ids", "tokens", "is_valid")
"""They lie anywhere in a step's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEnds:
    """When rows end; see the module."""

    slots: torch.Tensor
    positions: torch.Tensor
    max_tokens: torch.Tensor
    stop_ids: torch.Tensor


@triton.jit(do_not_specialize=["num_rows", "width"], do_not_specialize_on_alignment=_VIEWS)
def _note_tokens(
    slots,
    positions,
    max_tokens,
    stop_ids,
    tokens,
    is_valid,
    finished,
    last_tokens,
    outcome,
    num_rows,
    width,
    STOPS: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    token = tl.load(tokens + row)
    had_ended = tl.load(finished + slot) != 0
    is_last = tl.load(positions + row) + 1 >= tl.load(max_tokens + row)
    stop = tl.arange(0, STOPS)
    stops = tl.load(stop_ids + row * width + stop, mask=stop < width, other=-1)
    valid = tl.load(is_valid + row) != 0
    is_taken, has_ended, reported = end_of(token, valid, had_ended, is_last, stops)
    tl.store(finished + slot, has_ended)
    tl.store(last_tokens + slot, token, mask=is_taken)
    tl.store(outcome + row, reported)
    tl.store(outcome + num_rows + row, has_ended.to(tl.int64))


def note_tokens(
    ends: SampledEnds,
    tokens: torch.Tensor,
    is_valid: torch.Tensor,
    finished: torch.Tensor,
    last_tokens: torch.Tensor,
) -> torch.Tensor:
    """Record the tokens of rows: [2, n] int64, ids to report and 1 where the request has ended."""
    num_rows, width = ends.stop_ids.shape
    columns = (ends.slots, ends.positions, ends.max_tokens, tokens, is_valid)
    is_even = all(column.shape == (num_rows,) and column.is_contiguous() for column in columns)
    if not is_even or not ends.stop_ids.is_contiguous():
        shapes = [tuple(column.shape) for column in columns]
        message = f"{num_rows} rows of stop ids; slots, positions, limits and tokens are {shapes}"
        raise ValueError(message)
    outcome = torch.empty(2, num_rows, dtype=torch.int64, device=finished.device)
    if num_rows:
        _note_tokens[(num_rows,)](
            ends.slots,
            ends.positions,
            ends.max_tokens,
            ends.stop_ids,
            tokens,
            is_valid,
            finished,
            last_tokens,
            outcome,
            num_rows,
            width,
            STOPS=max(_LEAST_STOPS, triton.next_power_of_2(width)),
            num_warps=1,
        )
    return outcome
