"""Owns the contract of one step between scheduler and runner; owns no state and no tensors.

The scheduler (rank 0) plans an immutable ``ScheduleBatch``; every rank's runner replays it and the
last stage answers a ``StepResult``. Device state is indexed by request slot: a runner keeps, per
slot, the row of the page table, the sampling parameters, the last sampled token and the length.
Therefore a decode row carries no token id: its input is the slot's last token on the device.

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


class ForwardMode(enum.Enum):
    """What the rows of a batch are; decides which attention path and which graph runs."""

    EXTEND = "extend"
    DECODE = "decode"
    MIXED = "mixed"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInit:
    """A request enters a slot: everything sampling needs for the request's whole life.

    ``num_prompt_tokens`` and ``num_generated_tokens`` say where counting of output starts (a
    resumed request has generated tokens already). ``eos_token_ids`` is empty when EOS is ignored.
    """

    slot: SlotIndex
    sampling: SamplingParams
    num_prompt_tokens: int
    num_generated_tokens: int
    eos_token_ids: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWrite:
    """Pages entered into a slot's row of the page table, from page-aligned ``first_page`` on.

    ``pages`` [n] int32; ``first_page`` counts pages, not tokens.
    """

    slot: SlotIndex
    first_page: int
    pages: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One request's part of a step.

    Computes KV for positions [start, start + num_new). An extend row brings its ``token_ids``
    [num_new] int32; a decode row has ``token_ids`` None, ``num_new`` 1, and reads the slot's last
    token. ``is_sampled`` is False for every chunk but the last of a prefill.
    """

    request_id: RequestId
    slot: SlotIndex
    start: int
    num_new: int
    token_ids: Int32Array | None
    is_sampled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleBatch:
    """The plan of one step. ``step`` counts from 1; extend rows come before decode rows."""

    step: int
    mode: ForwardMode
    rows: tuple[BatchRow, ...]
    slot_inits: tuple[SlotInit, ...]
    page_writes: tuple[PageWrite, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gave; ``sampled_ids`` [num sampled rows] int32, in the order of those rows."""

    step: int
    sampled_ids: Int32Array


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
