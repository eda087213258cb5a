"""Owns the translation of a pass's rows into a ``ForwardBatch``; keeps nothing.

The host part packs what the rows say; the device part adds what only the device knows: last tokens,
finished slots and pages.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mizzen_worker.contracts.batch import DecodeRows, ExtendRow, Int32Array
from mizzen_worker.memory.forward_batch import ForwardBatch, SharedPrefixes
from mizzen_worker.model_executor.device_link import StagedStep, StepPack
from mizzen_worker.model_executor.shared_prefix_items import num_shared_items, shared_work_items
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.model_executor.step_passes import ModelPass

_FROM_SLOT = -1
"""Token id of a decode row on its way to the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """What the host knows of a pass; packed under names that begin with ``prefix``."""

    prefix: str
    row_starts: Int32Array
    row_lengths: Int32Array
    num_sampled: int
    num_wanted: int
    """Tokens whose logits are wanted: the sampled ones first."""
    is_all_sampled: bool
    has_extends: bool
    has_decodes: bool
    has_groups: bool
    first_decode: int
    """Row of the first decode row."""


def pack_pass(pack: StepPack, part: ModelPass, *, prefix: str, page_size: int) -> PassInputs:
    """Add what ``unpack_pass`` needs."""
    extends, decodes = part.extends, part.decodes
    num_decodes = len(decodes.slots)
    starts, slots = decodes.starts, decodes.slots
    counts = np.ones(num_decodes, dtype=np.int32)
    if extends:
        starts = _joined([row.start for row in extends], starts)
        slots = _joined([row.slot for row in extends], slots)
        counts = _joined([row.num_new for row in extends], counts)
    row_starts = np.zeros(len(slots) + 1, dtype=np.int32)
    counts.cumsum(out=row_starts[1:])
    positions, token_slots = starts, slots
    if extends:
        shifts = (starts - row_starts[:-1]).repeat(counts)
        positions = np.arange(row_starts[-1], dtype=np.int32) + shifts
        token_slots = slots.repeat(counts)
        token_ids = [row.token_ids for row in extends]
        token_ids.append(np.full(num_decodes, _FROM_SLOT, dtype=np.int32))
        pack.add_integers(prefix + "token_ids", np.concatenate(token_ids))
    wanted = row_starts[1:] - 1
    if not all(row.is_sampled for row in extends):
        num_left_out = len(extends)
        sampled = [index for index, row in enumerate(extends) if row.is_sampled]
        wanted = np.concatenate([wanted[sampled], wanted[num_left_out:]])
    num_sampled = len(wanted)
    if any(row.target_ids is not None for row in extends):
        tokens, targets = _scored_tokens(extends, row_starts)
        wanted = np.concatenate([wanted, tokens])
        pack.add_integers(prefix + "targets", targets)
    columns, offsets = np.divmod(positions, page_size)
    row_lengths = (starts + counts).astype(np.int32, copy=False)
    pack.add_integers(prefix + "row_slots", slots)
    pack.add_integers(prefix + "row_starts", row_starts)
    pack.add_integers(prefix + "row_lengths", row_lengths)
    pack.add_integers(prefix + "token_slots", token_slots)
    pack.add_integers(prefix + "positions", positions)
    pack.add_integers(prefix + "page_columns", columns)
    pack.add_integers(prefix + "page_offsets", offsets)
    pack.add_integers(prefix + "logit_tokens", wanted)
    _pack_groups(pack, decodes, prefix)
    return PassInputs(
        prefix=prefix,
        row_starts=row_starts,
        row_lengths=row_lengths,
        num_sampled=num_sampled,
        num_wanted=len(wanted),
        # Each row has a token at least, so these are rows of one token, and nothing else is wanted.
        is_all_sampled=num_sampled == len(wanted) == row_starts[-1],
        has_extends=bool(extends),
        has_decodes=num_decodes > 0,
        has_groups=bool(decodes.groups),
        first_decode=len(extends),
    )


def _pack_groups(pack: StepPack, decodes: DecodeRows, prefix: str) -> None:
    groups = decodes.groups
    if not groups:
        return
    work = shared_work_items(groups, len(decodes.slots), num_shared_items(groups))
    pack.add_integers(prefix + "shared_items", work.items.ravel())
    pack.add_integers(prefix + "shared_count", np.array([work.num_items]))
    pack.add_integers(prefix + "shared_tokens", work.row_tokens)


def _joined(extends: list[int], decodes: Int32Array) -> Int32Array:
    """One value per row: the extends', then the decodes'."""
    return np.concatenate([np.array(extends, dtype=np.int32), decodes])


def _scored_tokens(
    extends: tuple[ExtendRow, ...], row_starts: Int32Array
) -> tuple[Int32Array, Int32Array]:
    """Indices of the tokens whose logits score a target, and these targets."""
    tokens: list[Int32Array] = []
    targets: list[Int32Array] = []
    for row, first_token in zip(extends, row_starts.tolist(), strict=False):
        if row.target_ids is not None:
            first = first_token + row.target_start - row.start
            tokens.append(np.arange(first, first + len(row.target_ids), dtype=np.int32))
            targets.append(row.target_ids)
    return np.concatenate(tokens), np.concatenate(targets)


def unpack_pass(
    inputs: PassInputs, staged: StagedStep, slots: SlotState, page_size: int
) -> ForwardBatch:
    """Build the tensors of a pass; decode rows of finished slots get the sink page."""
    longs, prefix = staged.longs, inputs.prefix
    token_slots = longs[prefix + "token_slots"]
    pages = slots.page_table[token_slots, longs[prefix + "page_columns"]]
    if not inputs.has_decodes:
        token_ids = longs[prefix + "token_ids"]
    elif inputs.has_extends:
        given = longs[prefix + "token_ids"]
        is_decode = given < 0
        token_ids = torch.where(is_decode, slots.last_tokens[token_slots], given)
        pages = pages.masked_fill(is_decode & slots.finished[token_slots], 0)
    else:
        token_ids = slots.last_tokens[token_slots]
        pages = pages.masked_fill(slots.finished[token_slots], 0)
    return ForwardBatch(
        token_ids=token_ids,
        positions=longs[prefix + "positions"],
        kv_locations=pages.long() * page_size + longs[prefix + "page_offsets"],
        page_table=slots.page_table,
        row_slots=longs[prefix + "row_slots"],
        sampled_tokens=longs[prefix + "logit_tokens"],
        device_row_starts=staged.integers[prefix + "row_starts"],
        device_row_lengths=staged.integers[prefix + "row_lengths"],
        row_starts=inputs.row_starts,
        row_lengths=inputs.row_lengths,
        page_size=page_size,
        is_all_sampled=inputs.is_all_sampled,
        shared_prefixes=_shared_prefixes(inputs, staged),
    )


def _shared_prefixes(inputs: PassInputs, staged: StagedStep) -> SharedPrefixes | None:
    if not inputs.has_groups:
        return None
    integers, prefix = staged.integers, inputs.prefix
    return SharedPrefixes(
        first_row=inputs.first_decode,
        num_items=integers[prefix + "shared_count"],
        items=integers[prefix + "shared_items"].view(-1, 3),
        row_tokens=integers[prefix + "shared_tokens"],
    )
