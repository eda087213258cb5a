"""Owns penalties of seen tokens on a GPU, in place; the meaning is ``sampler/adjustments.py``.

``logits`` [n, vocab] float32, rows of contiguous values. Programs (part of the vocabulary, row
with penalties) read the row's tallies and touch only logits of parts in which something was seen.
No row of logits is named twice.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_PART = 4096
_COLUMNS = ("rows", "tally_rows", "repetition", "frequency", "presence")


@dataclass(frozen=True, slots=True, kw_only=True)
class PenalisedRows:
    """Rows [n] int64 of logits and of ``tallies`` [any, vocab] int32; penalties [n] float32."""

    rows: torch.Tensor
    tally_rows: torch.Tensor
    tallies: torch.Tensor
    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


@triton.jit(do_not_specialize_on_alignment=list(_COLUMNS))
def _penalise_kernel(
    logits,
    tallies,
    rows,
    tally_rows,
    repetition,
    frequency,
    presence,
    vocab_size,
    row_stride,
    PART: tl.constexpr,
):
    entry = tl.program_id(1)
    column = tl.program_id(0) * PART + tl.arange(0, PART)
    is_there = column < vocab_size
    tally_row = tl.load(tally_rows + entry).to(tl.int64)
    tally = tl.load(tallies + tally_row * vocab_size + column, mask=is_there, other=0)
    if tl.max(tally, 0) > 0:
        row = tl.load(rows + entry).to(tl.int64)
        is_seen = is_there & (tally > 0)
        place = logits + row * row_stride + column
        value = tl.load(place, mask=is_seen, other=0.0)
        factor = tl.load(repetition + entry)
        repeated = tl.where(value > 0, value / factor, value * factor)
        count = tally >> 1
        once = tl.where(count > 0, tl.load(presence + entry), 0.0)
        lowered = repeated - (count.to(tl.float32) * tl.load(frequency + entry) + once)
        tl.store(place, lowered, mask=is_seen)


def penalise(logits: torch.Tensor, penalised: PenalisedRows) -> None:
    """See the module."""
    vocab_size = logits.shape[1]
    if penalised.tallies.shape[1] != vocab_size or not penalised.tallies.is_contiguous():
        message = f"tallies {tuple(penalised.tallies.shape)} do not count {vocab_size} ids"
        raise ValueError(message)
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        message = f"logits must be float32 and contiguous in a row, not {logits.dtype}"
        raise ValueError(message)
    num_rows = len(penalised.rows)
    if not num_rows:
        return
    _penalise_kernel[(triton.cdiv(vocab_size, _PART), num_rows)](
        logits,
        penalised.tallies,
        penalised.rows.contiguous(),
        penalised.tally_rows.contiguous(),
        penalised.repetition.contiguous(),
        penalised.frequency.contiguous(),
        penalised.presence.contiguous(),
        vocab_size,
        logits.stride(0),
        PART=_PART,
        num_warps=8,
    )
