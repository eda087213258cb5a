"""Owns the first kernel of a captured decode step: from the host's words to the step's tensors.

It decides nothing; what it writes is what ``SlotState.change`` and ``unpack_pass`` say. The words
lie in page-locked memory that the device reads by itself, so a step needs no copy. There is a ring
of them, because the host writes the next step's words while this step waits its turn; the device
counts the captured steps itself (``counter``), and so does the host.

Words of one place in the ring, int32: number of rows, of page writes and of items of shared
prefixes, nothing up to ``HEADER``; slots, positions and shared tokens [max_rows] each, zeros behind
the rows up to the bucket's size; slots, columns and pages of page writes [max_writes] each; items
[max_items, 3]. ``StepWords`` says where. Shared tokens and items are read where they are staged.

One program: rows may read pages that this step enters. The kernel behind it may begin at once, but
lets no other begin before it has waited for this one's end: kernels further behind look at slots
and pages before they wait.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.dependent_launch import let_next_begin
from mizzen_worker.kernels.gpu.launching import dependent

HEADER = 8
_HEADER = tl.constexpr(HEADER)
_WRITES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWords:
    """The ring of words: ``ring`` [places, words] int32, page-locked or on the device itself.

    ``places`` is a power of two. ``counter`` [1] int32 device: captured steps so far, wrapping.
    """

    ring: torch.Tensor
    counter: torch.Tensor
    max_rows: int
    max_writes: int
    max_items: int

    @property
    def first_write(self) -> int:
        """Where page writes begin."""
        return HEADER + 3 * self.max_rows

    @property
    def first_item(self) -> int:
        """Where items begin."""
        return self.first_write + 3 * self.max_writes

    @property
    def num_words(self) -> int:
        """Words of one place."""
        return self.first_item + 3 * self.max_items


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTensors:
    """Device state by slot: ``page_table`` [slots, max_pages] int32, rows contiguous.

    ``last_tokens`` [slots] int64; ``finished`` [slots] bool. Slot 0 is finished.
    """

    page_table: torch.Tensor
    last_tokens: torch.Tensor
    finished: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Tensors of a captured step, each [at least the bucket's rows], on the device.

    ``token_ids``, ``positions``, ``kv_locations``, ``row_slots`` int64; ``row_lengths`` int32;
    ``current`` [2] int32: place in the ring, and number of rows that are not padding.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    kv_locations: torch.Tensor
    row_slots: torch.Tensor
    row_lengths: torch.Tensor
    current: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawColumns:
    """Parameters of draws, by slot or by row, one entry each, contiguous, on the device.

    ``temperatures``, ``top_p``, ``min_p`` float32; ``top_k`` int32; ``seeds`` int64.
    """

    temperatures: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    seeds: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedDraws:
    """What is staged for draws beside the rows: from ``by_slot`` to ``by_row``.

    ``positions`` [rows] int64 are those of the tokens to draw: behind the ones that go in.
    """

    by_slot: DrawColumns
    by_row: DrawColumns
    positions: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedShares:
    """Shared prefixes of the rows, as in ``SharedPrefixes``; all int32, contiguous.

    ``num_items`` [1], ``items`` [max_items, 3], ``row_tokens`` [rows].
    """

    num_items: torch.Tensor
    items: torch.Tensor
    row_tokens: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExtras:
    """What some steps need beside their rows."""

    draws: StagedDraws | None = None
    shares: StagedShares | None = None


@triton.jit
def _stage_draws(
    slots,
    starts,
    rows,
    is_row,
    temperatures,
    top_p,
    min_p,
    top_k,
    seeds,
    row_temperatures,
    row_top_p,
    row_min_p,
    row_top_k,
    row_seeds,
    row_positions,
):
    tl.store(row_temperatures + rows, tl.load(temperatures + slots, mask=is_row), mask=is_row)
    tl.store(row_top_p + rows, tl.load(top_p + slots, mask=is_row), mask=is_row)
    tl.store(row_min_p + rows, tl.load(min_p + slots, mask=is_row), mask=is_row)
    tl.store(row_top_k + rows, tl.load(top_k + slots, mask=is_row), mask=is_row)
    tl.store(row_seeds + rows, tl.load(seeds + slots, mask=is_row), mask=is_row)
    tl.store(row_positions + rows, starts.to(tl.int64) + 1, mask=is_row)


@triton.jit(do_not_specialize=["num_bucket_rows"])
def _stage_step(
    ring,
    counter,
    page_table,
    last_tokens,
    finished,
    token_ids,
    positions,
    kv_locations,
    row_slots,
    row_lengths,
    current,
    temperatures,
    top_p,
    min_p,
    top_k,
    seeds,
    row_temperatures,
    row_top_p,
    row_min_p,
    row_top_k,
    row_seeds,
    row_draw_positions,
    num_items,
    items,
    row_tokens,
    num_bucket_rows,
    place_stride,
    table_stride,
    max_rows,
    max_writes,
    page_size,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
    WRITES: tl.constexpr,
    HAS_DRAWS: tl.constexpr,
    ITEM_WORDS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_begin(PDL)
    number = tl.load(counter)
    place = (number & 0x7FFFFFFF) % PLACES  # The count comes round once in weeks.
    words = ring + place.to(tl.int64) * place_stride
    rows = tl.arange(0, ROWS)
    is_row = rows < num_bucket_rows
    slots = tl.load(words + _HEADER + rows, mask=is_row, other=0).to(tl.int64)
    starts = tl.load(words + _HEADER + max_rows + rows, mask=is_row, other=0)
    num_rows = tl.load(words)
    num_writes = tl.load(words + 1)
    writes = words + _HEADER + 3 * max_rows
    for first in range(0, num_writes, WRITES):
        index = first + tl.arange(0, WRITES)
        is_write = index < num_writes
        write_slots = tl.load(writes + index, mask=is_write, other=0).to(tl.int64)
        columns = tl.load(writes + max_writes + index, mask=is_write, other=0)
        pages = tl.load(writes + 2 * max_writes + index, mask=is_write, other=0)
        tl.store(page_table + write_slots * table_stride + columns, pages, mask=is_write)
    tl.debug_barrier()  # What one thread entered into the table, another one reads.
    has_ended = tl.load(finished + slots, mask=is_row, other=1) != 0
    tokens = tl.load(last_tokens + slots, mask=is_row, other=0)
    columns = starts // page_size
    pages = tl.load(page_table + slots * table_stride + columns, mask=is_row, other=0)
    pages = tl.where(has_ended, 0, pages).to(tl.int64)
    tl.store(token_ids + rows, tokens, mask=is_row)
    tl.store(positions + rows, starts.to(tl.int64), mask=is_row)
    tl.store(kv_locations + rows, pages * page_size + starts % page_size, mask=is_row)
    tl.store(row_slots + rows, slots, mask=is_row)
    tl.store(row_lengths + rows, starts + 1, mask=is_row)
    if HAS_DRAWS:
        _stage_draws(
            slots,
            starts,
            rows,
            is_row,
            temperatures,
            top_p,
            min_p,
            top_k,
            seeds,
            row_temperatures,
            row_top_p,
            row_min_p,
            row_top_k,
            row_seeds,
            row_draw_positions,
        )
    if ITEM_WORDS > 0:
        shared = tl.load(words + _HEADER + 2 * max_rows + rows, mask=is_row, other=0)
        tl.store(row_tokens + rows, shared, mask=is_row)
        count = tl.load(words + 2)
        index = tl.arange(0, ITEM_WORDS)
        is_item = index < 3 * count
        item = tl.load(writes + 3 * max_writes + index, mask=is_item, other=0)
        tl.store(items + index, item, mask=is_item)
        tl.store(num_items, count)
    tl.store(current, place)
    tl.store(current + 1, num_rows)
    # Every thread has read it: the barrier above is behind what it found there.
    tl.atomic_add(counter, 1, sem="relaxed")


def stage_step(
    words: StepWords,
    slots: SlotTensors,
    rows: StagedRows,
    extras: StepExtras,
    *,
    num_rows: int,
    page_size: int,
) -> None:
    """Enter the step's pages and write the tensors of ``num_rows`` rows, padding included."""
    _require_shapes(words, slots, rows, num_rows)
    block = max(16, triton.next_power_of_2(num_rows))
    _stage_step[(1,)](
        words.ring,
        words.counter,
        slots.page_table,
        slots.last_tokens,
        slots.finished,
        rows.token_ids,
        rows.positions,
        rows.kv_locations,
        rows.row_slots,
        rows.row_lengths,
        rows.current,
        *_draw_arguments(extras.draws, num_rows),
        *_share_arguments(words, extras.shares, num_rows),
        num_rows,
        words.ring.stride(0),
        slots.page_table.stride(0),
        words.max_rows,
        words.max_writes,
        page_size,
        PLACES=len(words.ring),
        ROWS=block,
        WRITES=_WRITES,
        HAS_DRAWS=extras.draws is not None,
        ITEM_WORDS=triton.next_power_of_2(3 * words.max_items) if extras.shares else 0,
        PDL=dependent()["PDL"],
        num_warps=4,
    )


def _draw_arguments(draws: StagedDraws | None, num_rows: int) -> tuple[torch.Tensor | None, ...]:
    if draws is None:
        return (None,) * 11
    columns = [
        (table.temperatures, table.top_p, table.min_p, table.top_k, table.seeds)
        for table in (draws.by_slot, draws.by_row)
    ]
    by_row = (*columns[1], draws.positions)
    is_sound = all(column.is_contiguous() for column in (*columns[0], *by_row))
    if not is_sound or any(len(column) < num_rows for column in by_row):
        message = f"parameters of draws must be contiguous and have {num_rows} rows"
        raise ValueError(message)
    return (*columns[0], *by_row)


def _share_arguments(
    words: StepWords, shares: StagedShares | None, num_rows: int
) -> tuple[torch.Tensor | None, ...]:
    if shares is None:
        return (None, None, None)
    is_sound = shares.items.is_contiguous() and shares.row_tokens.is_contiguous()
    if not is_sound or len(shares.items) < words.max_items or len(shares.row_tokens) < num_rows:
        message = f"shared prefixes need {words.max_items} items and {num_rows} rows, contiguous"
        raise ValueError(message)
    return (shares.num_items, shares.items, shares.row_tokens)


def _require_shapes(words: StepWords, slots: SlotTensors, rows: StagedRows, num_rows: int) -> None:
    least = words.num_words
    if len(words.ring) & (len(words.ring) - 1):
        message = f"a ring of {len(words.ring)} places; give it a power of two"
        raise ValueError(message)
    if words.ring.shape[1] < least or not 1 <= num_rows <= words.max_rows:
        message = f"{num_rows} rows and {words.ring.shape[1]} words a step; needed are {least}"
        raise ValueError(message)
    columns = (rows.token_ids, rows.positions, rows.kv_locations, rows.row_slots, rows.row_lengths)
    is_sound = all(column.is_contiguous() and len(column) >= num_rows for column in columns)
    if not is_sound or slots.page_table.stride(1) != 1:
        message = f"tensors of a step must be contiguous and have {num_rows} rows"
        raise ValueError(message)
