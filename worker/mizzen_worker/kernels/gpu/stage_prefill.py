"""Owns the kernel before a captured forward of new tokens: from a step's words to its tensors.

It decides nothing; what it writes is what ``SlotState.change`` and ``unpack_pass`` say, filled up
to the captured sizes: tokens beyond the step's own are a row of slot 0, whose keys and values go to
the sink, and rows beyond that one have no tokens. Entering requests and pages twice does no harm.

One program: tokens may be read of slots, and written to pages, that this step enters.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_WARPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWords:
    """Where a step's numbers begin in ``words`` [n] int32, on the device.

    ``token_ids``, ``token_slots``, ``positions`` [num_tokens], ids negative for decode rows, which
    take their slots' last tokens; ``row_slots``, ``row_lengths`` [num_rows], ``row_starts``
    [num_rows + 1]; ``wanted`` [num_wanted] tokens whose logits are; ``entered`` [num_entered]
    slots; slots, columns and pages of page writes [num_writes].
    """

    words: torch.Tensor
    num_tokens: int
    num_rows: int
    num_wanted: int
    num_entered: int
    num_writes: int
    token_ids: int
    token_slots: int
    positions: int
    row_slots: int
    row_starts: int
    row_lengths: int
    wanted: int
    entered: int
    write_slots: int
    write_columns: int
    write_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTensors:
    """What a captured forward reads, contiguous; its sizes are the captured ones.

    ``token_ids``, ``positions``, ``kv_locations`` [tokens], ``row_slots``, ``wanted`` [rows] int64;
    ``row_starts`` [rows + 1], ``row_lengths`` [rows] int32.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    kv_locations: torch.Tensor
    row_slots: torch.Tensor
    wanted: torch.Tensor
    row_starts: torch.Tensor
    row_lengths: torch.Tensor


_COUNTS = (
    "num_tokens",
    "num_rows",
    "num_wanted",
    "num_entered",
    "num_writes",
    "first_token_id",
    "first_token_slot",
    "first_position",
    "first_row_slot",
    "first_row_start",
    "first_row_length",
    "first_wanted",
    "first_entered",
    "first_write_slot",
    "first_write_column",
    "first_write_page",
    "max_tokens",
    "max_rows",
)
"""Of every step others: nothing is compiled anew for them."""


@triton.jit(do_not_specialize=_COUNTS)
def _stage_prefill(
    words,
    page_table,
    last_tokens,
    finished,
    token_ids,
    positions,
    kv_locations,
    row_slots,
    wanted,
    row_starts,
    row_lengths,
    num_tokens,
    num_rows,
    num_wanted,
    num_entered,
    num_writes,
    first_token_id,
    first_token_slot,
    first_position,
    first_row_slot,
    first_row_start,
    first_row_length,
    first_wanted,
    first_entered,
    first_write_slot,
    first_write_column,
    first_write_page,
    max_tokens,
    max_rows,
    table_stride,
    page_size,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for first in range(0, num_writes, BLOCK):
        index = first + lanes
        is_write = index < num_writes
        slots = tl.load(words + first_write_slot + index, mask=is_write, other=0).to(tl.int64)
        columns = tl.load(words + first_write_column + index, mask=is_write, other=0)
        pages = tl.load(words + first_write_page + index, mask=is_write, other=0)
        tl.store(page_table + slots * table_stride + columns, pages, mask=is_write)
    for first in range(0, num_entered, BLOCK):
        index = first + lanes
        is_entered = index < num_entered
        slots = tl.load(words + first_entered + index, mask=is_entered, other=0).to(tl.int64)
        tl.store(finished + slots, index < 0, mask=is_entered)
    tl.debug_barrier()  # What one thread entered, another one reads.
    for first in range(0, max_tokens, BLOCK):
        index = first + lanes
        is_token = index < num_tokens
        given = tl.load(words + first_token_id + index, mask=is_token, other=0).to(tl.int64)
        slots = tl.load(words + first_token_slot + index, mask=is_token, other=0).to(tl.int64)
        position = tl.load(words + first_position + index, mask=is_token, other=0)
        is_decode = given < 0
        last = tl.load(last_tokens + slots, mask=is_decode, other=0)
        has_ended = tl.load(finished + slots, mask=is_decode, other=0) != 0
        place = page_table + slots * table_stride + position // page_size
        page = tl.load(place, mask=is_token, other=0)
        page = tl.where(has_ended, 0, page).to(tl.int64)
        is_captured = index < max_tokens
        tl.store(token_ids + index, tl.where(is_decode, last, given), mask=is_captured)
        tl.store(positions + index, position.to(tl.int64), mask=is_captured)
        location = page * page_size + tl.where(is_token, position % page_size, 0)
        tl.store(kv_locations + index, location, mask=is_captured)
    for first in range(0, max_rows + 1, BLOCK):
        index = first + lanes
        is_own = index < num_rows
        is_row = index < max_rows
        slots = tl.load(words + first_row_slot + index, mask=is_own, other=0).to(tl.int64)
        tl.store(row_slots + index, slots, mask=is_row)
        lengths = tl.load(words + first_row_length + index, mask=is_own, other=0)
        lengths = tl.where(index == num_rows, max_tokens - num_tokens, lengths)
        tl.store(row_lengths + index, lengths, mask=is_row)
        is_start = index <= num_rows
        starts = tl.load(words + first_row_start + index, mask=is_start, other=0)
        starts = tl.where(is_start, starts, max_tokens)
        tl.store(row_starts + index, starts, mask=index <= max_rows)
        tokens = tl.load(words + first_wanted + index, mask=index < num_wanted, other=0)
        tl.store(wanted + index, tokens.to(tl.int64), mask=is_row)


def stage_prefill(
    words: PrefillWords,
    page_table: torch.Tensor,
    last_tokens: torch.Tensor,
    finished: torch.Tensor,
    tensors: PrefillTensors,
    *,
    page_size: int,
) -> None:
    """Enter requests and pages, then write ``tensors`` up to their sizes.

    ``page_table`` [slots, pages] int32 with contiguous rows; ``last_tokens`` [slots] int64;
    ``finished`` [slots] bool.
    """
    max_tokens, max_rows = len(tensors.token_ids), len(tensors.row_slots)
    _require_room(words, tensors)
    if page_table.stride(1) != 1 or not words.words.is_contiguous():
        message = "words and rows of the page table must be contiguous"
        raise ValueError(message)
    _stage_prefill[(1,)](
        words.words,
        page_table,
        last_tokens,
        finished,
        tensors.token_ids,
        tensors.positions,
        tensors.kv_locations,
        tensors.row_slots,
        tensors.wanted,
        tensors.row_starts,
        tensors.row_lengths,
        words.num_tokens,
        words.num_rows,
        words.num_wanted,
        words.num_entered,
        words.num_writes,
        words.token_ids,
        words.token_slots,
        words.positions,
        words.row_slots,
        words.row_starts,
        words.row_lengths,
        words.wanted,
        words.entered,
        words.write_slots,
        words.write_columns,
        words.write_pages,
        max_tokens,
        max_rows,
        page_table.stride(0),
        page_size,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )


def _require_room(words: PrefillWords, tensors: PrefillTensors) -> None:
    max_tokens, max_rows = len(tensors.token_ids), len(tensors.row_slots)
    sizes = (
        len(tensors.positions) == len(tensors.kv_locations) == max_tokens,
        len(tensors.row_lengths) == len(tensors.wanted) == max_rows,
        len(tensors.row_starts) == max_rows + 1,
    )
    if words.num_tokens > max_tokens or max(words.num_rows + 1, words.num_wanted) > max_rows:
        message = (
            f"{words.num_tokens} tokens, {words.num_rows} rows and {words.num_wanted} logits; "
            f"room is for {max_tokens} tokens and {max_rows} rows, one of them padding"
        )
        raise ValueError(message)
    if not all(sizes):
        message = f"tensors of different sizes; {max_tokens} tokens and {max_rows} rows are meant"
        raise ValueError(message)
