"""Owns the contract of one step between scheduler and runner; owns no state and no tensors.

The scheduler (rank 0) plans an immutable ``ScheduleBatch``; every rank's runner replays it and the
last stage answers a ``StepResult``. Device state is indexed by request slot: a runner keeps, per
slot, the row of the page table, the sampling parameters, the last sampled token and the length.
Therefore a decode row carries no token id: its input is the slot's last token on the device. Decode
rows come as arrays (``DecodeRows``), because a step may have a thousand of them.

A runner also decides, on the device, that a request has ended: by EOS or a stop id (not before
``min_new_tokens``), or because the sampled token is number ``max_tokens`` of prompt + output. The
scheduler may not have seen that yet and launch the slot's decode row once more: such a row is a
masked no-op. Its KV goes to page 0, the slot's length, last token and penalty counts stay, and its
sampled id is ``NO_TOKEN``. A row whose logits hold no finite best value ends its request on the
device too: its sampled id is ``INVALID_TOKEN``.

Order of effects inside one step: ``slot_inits``, then ``page_writes``, then the forward, then
sampling. Invariants (checked by the builder): slots of a batch are distinct; a row's pages cover
``start + num_new`` positions before it runs; pages of two rows may coincide only where both lie
wholly inside a cached (read-only) prefix; page 0 is never written by a row.
"""

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mizzen_worker.contracts.ids import RequestId, SlotIndex, TokenId
from mizzen_worker.contracts.request import SamplingParams

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


NO_TOKEN = -1
"""Sampled id of a row whose request had already ended on the device."""

INVALID_TOKEN = -2
"""Sampled id of a row for which the model gave no finite logits; the request ends with an error."""


class ForwardMode(enum.Enum):
    """What the rows of a batch are."""

    EXTEND = "extend"
    DECODE = "decode"
    MIXED = "mixed"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInit:
    """A request enters a slot: everything sampling needs for the request's whole life.

    ``num_prompt_tokens`` and ``num_generated_tokens`` say where counting of output starts (a
    resumed request has generated tokens already). ``eos_token_ids`` is empty when EOS is ignored.
    ``max_tokens`` is the longest prompt + output, the context's limit included. ``history`` [n]
    int32 are the ids of prompt and generated tokens where a penalty has to count them, else None.
    """

    slot: SlotIndex
    sampling: SamplingParams
    num_prompt_tokens: int
    num_generated_tokens: int
    eos_token_ids: tuple[TokenId, ...]
    max_tokens: int
    history: Int32Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWrite:
    """Pages entered into a slot's row of the page table, from page-aligned ``first_page`` on.

    ``pages`` [n] int32; ``first_page`` counts pages, not tokens.
    """

    slot: SlotIndex
    first_page: int
    pages: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRow:
    """Known tokens of one request: a whole prompt or a chunk of it.

    Computes KV for positions [start, start + num_new) of ``token_ids`` [num_new] int32.
    ``is_sampled`` is False for every chunk but the last of a prefill.

    ``target_ids`` [k] int32 asks for prompt scores: of ``target_ids[j]`` as the token that follows
    position ``target_start + j``, all of them positions of this row, and before its last one where
    the row is sampled.
    """

    request_id: RequestId
    slot: SlotIndex
    start: int
    num_new: int
    token_ids: Int32Array
    is_sampled: bool
    target_start: int = 0
    target_ids: Int32Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroup:
    """Neighbouring decode rows whose first positions lie in the very same pages.

    Rows ``first`` to ``first + count - 1`` of ``DecodeRows``; positions below ``num_tokens``, a
    multiple of the page size and at most each row's start. A runner may read their KV once for all.
    """

    first: int
    count: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """One next token for each of n slots; every one is sampled.

    ``slots`` [n] int32; ``starts`` [n] int32, the position of each slot's last token, whose KV the
    step computes. ``groups`` are disjoint and in the order of their rows; a row may be in none.
    """

    slots: Int32Array
    starts: Int32Array
    groups: tuple[PrefixGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBatch:
    """The plan of one step. ``step`` counts from 1; extend rows come before decode rows."""

    step: int
    extends: tuple[ExtendRow, ...]
    decodes: DecodeRows
    slot_inits: tuple[SlotInit, ...]
    page_writes: tuple[PageWrite, ...]

    @property
    def mode(self) -> ForwardMode:
        """What the rows are."""
        if self.extends:
            return ForwardMode.MIXED if len(self.decodes.slots) else ForwardMode.EXTEND
        return ForwardMode.DECODE if len(self.decodes.slots) else ForwardMode.IDLE

    @property
    def num_rows(self) -> int:
        """Rows of both kinds."""
        return len(self.extends) + len(self.decodes.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Log-probabilities of n tokens and of the k best alternatives of each, the likeliest first.

    ``logprobs`` [n] float32; ``top_ids`` [n, k] int32; ``top_logprobs`` [n, k] float32. k is the
    most that any row of the step asked for. Equal alternatives stand in the order of their ids.
    Entries of rows that did not ask hold nothing of meaning.
    """

    logprobs: Float32Array
    top_ids: Int32Array
    top_logprobs: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gave, in the order of its sampled rows (n of them): extends, then decodes.

    ``sampled_ids`` [n] int32; ``is_finished`` [n] bool: the device's word that the request has
    ended with this token or before it. ``sampled_scores`` covers the n rows when any of them asked
    for log-probabilities, else None. ``prompt_scores`` has one entry per row with ``target_ids``.
    """

    step: int
    sampled_ids: Int32Array
    is_finished: BoolArray
    sampled_scores: TokenScores | None = None
    prompt_scores: tuple[TokenScores, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """What a runner was built for; fixed for its life. Slots 1..max_slots, pages 1..num_pages."""

    max_slots: int
    num_pages: int
    page_size: int
    context_length: int
    vocab_size: int


class PendingStep(Protocol):
    """A launched step whose result may not exist yet."""

    def settle(self) -> StepResult:
        """Wait for the step and return its result; raises ``DeviceError``. Call exactly once."""
        ...


class Runner(Protocol):
    """Executes steps in the order they are launched. Not thread safe: one loop owns it."""

    @property
    def limits(self) -> RunnerLimits:
        """Fixed sizes; pure."""
        ...

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        """Queue one step and return without waiting for it where the device allows that.

        Raises ``StepError`` before anything was changed when the batch breaks its contract.
        """
        ...
