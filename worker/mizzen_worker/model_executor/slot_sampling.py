"""Owns the sampling parameters of every slot, on the host; owns nothing on the device.

The values of a step's sampled rows travel with the step: a few words per row. What the host knows
decides into which groups the rows fall, so the device is never asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import (
    BoolArray,
    DecodeRows,
    Float32Array,
    Int32Array,
    Int64Array,
    SlotInit,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.device_link import StagedStep, StepPack
from mizzen_worker.model_executor.penalty_tallies import PenaltyTallies
from mizzen_worker.model_executor.slot_table import MAX_STOP_IDS, SlotColumns
from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.sampler.sampling_batch import (
    ChoiceKind,
    ForbiddenIds,
    LogitBias,
    Penalties,
    SamplingBatch,
)

_INITIAL_STOP_WIDTH = 4
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""Below it a float32 is zero, or may be taken for it: nothing can be divided by that."""
_NO_SCORES = -1


def _kind(sampling: SamplingParams, vocab_size: int) -> ChoiceKind:
    if sampling.temperature < _LEAST_TEMPERATURE or sampling.top_k == 1:
        return ChoiceKind.GREEDY
    is_cut = 0 < sampling.top_k < vocab_size
    is_filtered = is_cut or sampling.top_p < 1 or sampling.min_p > 0
    return ChoiceKind.FILTERED if is_filtered else ChoiceKind.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """Which rows of a step are sampled, and for which token."""

    slots: Int32Array
    """[n]."""
    positions: Int32Array
    """[n]: index of the token to choose in prompt + output."""


class SlotSampling:
    """Parameters by slot."""

    def __init__(self, max_slots: int, vocab_size: int) -> None:
        rows = max_slots + 1
        self._vocab_size = vocab_size
        self._seeds = np.zeros(rows, dtype=np.int64)
        self._integers = np.zeros((2, rows), dtype=np.int32)  # top-k, max tokens
        self._reals = np.zeros((3, rows), dtype=np.float32)  # temperature, top-p, min-p
        self._penalties = np.zeros((3, rows), dtype=np.float32)  # as in ``Penalties``
        self._stop_ids = np.full((rows, _INITIAL_STOP_WIDTH), -1, dtype=np.int32)
        self._num_prompt = np.zeros(rows, dtype=np.int64)
        self._min_new = np.zeros(rows, dtype=np.int64)
        self._kinds = np.zeros(rows, dtype=np.int8)
        self._num_top = np.full(rows, _NO_SCORES, dtype=np.int64)
        self._tails = np.zeros(rows, dtype=np.int8)
        self._first_free = np.zeros(rows, dtype=np.int64)  # Position from which ids may stop.
        self._bias_by_slot: dict[int, tuple[Int32Array, Float32Array]] = {}

    def enter(self, init: SlotInit) -> None:
        """Set everything of one slot for a new request."""
        slot, sampling = init.slot, init.sampling
        self._seeds[slot] = _as_int64(sampling.seed)
        top_k = sampling.top_k if sampling.top_k < self._vocab_size else 0
        self._integers[:, slot] = (top_k, init.max_tokens)
        self._reals[:, slot] = (sampling.temperature, sampling.top_p, sampling.min_p)
        self._penalties[:, slot] = (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        self._num_prompt[slot] = init.num_prompt_tokens
        self._min_new[slot] = sampling.min_new_tokens
        self._kinds[slot] = _kind(sampling, self._vocab_size)
        self._num_top[slot] = _NO_SCORES if sampling.logprobs is None else sampling.logprobs.num_top
        # No token equals an id outside the vocabulary, and none such can be forbidden.
        stop_ids = sorted({*init.eos_token_ids, *sampling.stop_token_ids})
        self._set_stop_ids(slot, [id_ for id_ in stop_ids if 0 <= id_ < self._vocab_size])
        self._set_bias(slot, sampling)
        self._first_free[slot] = init.num_prompt_tokens + sampling.min_new_tokens
        self._tails[slot] = self._tail(slot, sampling, len(stop_ids))

    def _tail(self, slot: int, sampling: SamplingParams, num_stop_ids: int) -> Tail:
        if num_stop_ids > MAX_STOP_IDS:
            return Tail.UNFIT
        if sampling.has_penalty or sampling.logit_bias or sampling.logprobs is not None:
            return Tail.LOGITS
        return Tail.BEST if self._kinds[slot] == ChoiceKind.GREEDY else Tail.DRAWN

    def tail(self, decodes: DecodeRows) -> Tail:
        """What a step of such rows needs behind the head; of at least one."""
        tail = Tail(int(self._tails[decodes.slots].max()))
        if tail >= Tail.LOGITS or not (decodes.starts + 1 < self._first_free[decodes.slots]).any():
            return tail
        return Tail.LOGITS  # Ids are forbidden to a row.

    def columns(self, inits: Sequence[SlotInit]) -> SlotColumns:
        """What a ``SlotTable`` has of the slots of requests that have entered."""
        slots = np.array([init.slot for init in inits], dtype=np.int32)
        stop_ids = np.full((len(slots), MAX_STOP_IDS), -1, dtype=np.int32)
        known = self._stop_ids[slots, :MAX_STOP_IDS]
        stop_ids[:, : known.shape[1]] = known
        return SlotColumns(
            slots=slots,
            seeds=self._seeds[slots],
            integers=self._integers[:, slots],
            reals=self._reals[:, slots],
            stop_ids=stop_ids,
        )

    def _set_stop_ids(self, slot: int, stop_ids: Sequence[int]) -> None:
        missing = len(stop_ids) - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self._stop_ids[slot] = -1
        self._stop_ids[slot, : len(stop_ids)] = stop_ids

    def _set_bias(self, slot: int, sampling: SamplingParams) -> None:
        self._bias_by_slot.pop(slot, None)
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            self._bias_by_slot[slot] = (np.array(ids, np.int32), np.array(values, np.float32))

    def num_top(self, slots: Int32Array) -> Int64Array:
        """[n]: alternatives that the slots' requests want with each token, -1: no scores."""
        return self._num_top[slots]

    def pack(self, pack: StepPack, rows: SampledRows, tallies: PenaltyTallies) -> None:
        """Add what ``unpack`` needs."""
        slots, positions = rows.slots, rows.positions
        kinds = self._kinds[slots]
        pack.add_wides("seeds", self._seeds[slots])
        pack.add_integers("sampled_slots", slots)
        pack.add_integers("sample_positions", positions)
        pack.add_integers("integers", self._integers[:, slots].ravel())
        pack.add_integers("stop_ids", self._stop_ids[slots].ravel())
        pack.add_integers("plain_rows", np.flatnonzero(kinds == ChoiceKind.PLAIN))
        pack.add_integers("filtered_rows", np.flatnonzero(kinds == ChoiceKind.FILTERED))
        pack.add_reals("reals", self._reals[:, slots].ravel())
        self._pack_penalties(pack, slots, tallies)
        self._pack_forbidden(
            pack, slots, positions - self._num_prompt[slots] < self._min_new[slots]
        )
        if self._bias_by_slot:
            self._pack_bias(pack, slots)

    def _pack_penalties(self, pack: StepPack, slots: Int32Array, tallies: PenaltyTallies) -> None:
        tally_rows = tallies.rows_of(slots)
        rows = np.flatnonzero(tally_rows)
        if len(rows):
            pack.add_integers("penalty_rows", rows)
            pack.add_integers("tally_rows", tally_rows[rows])
            pack.add_reals("penalties", self._penalties[:, slots[rows]].ravel())

    def _pack_forbidden(self, pack: StepPack, slots: Int32Array, is_early: BoolArray) -> None:
        if not is_early.any():
            return
        rows = np.flatnonzero(is_early)
        stop_ids = self._stop_ids[slots[rows]]
        is_used = stop_ids >= 0
        if is_used.any():
            pack.add_integers("forbidden_rows", rows.repeat(is_used.sum(-1)))
            pack.add_integers("forbidden_ids", stop_ids[is_used])

    def _pack_bias(self, pack: StepPack, slots: Int32Array) -> None:
        biased = [
            (row, *self._bias_by_slot[slot])
            for row, slot in enumerate(slots.tolist())
            if slot in self._bias_by_slot
        ]
        if biased:
            counts = [len(ids) for _, ids, _ in biased]
            pack.add_integers("bias_rows", np.repeat([row for row, _, _ in biased], counts))
            pack.add_integers("bias_ids", np.concatenate([ids for _, ids, _ in biased]))
            pack.add_reals("bias", np.concatenate([values for _, _, values in biased]))


def unpack_sampling(staged: StagedStep, tallies: PenaltyTallies) -> SamplingBatch:
    """The parameters of the step's sampled rows, as ``SlotSampling.pack`` packed them."""
    longs, reals = staged.longs, staged.reals
    num_rows = len(longs["sampled_slots"])
    is_on_gpu = longs["sampled_slots"].device.type != "cpu"
    temperatures, top_p, min_p = reals["reals"].view(3, num_rows).unbind()
    bias = penalties = forbidden = None
    if "bias_rows" in longs:
        bias = LogitBias(rows=longs["bias_rows"], ids=longs["bias_ids"], values=reals["bias"])
    if "penalty_rows" in longs:
        repetition, frequency, presence = reals["penalties"].view(3, -1).unbind()
        penalties = Penalties(
            rows=longs["penalty_rows"],
            tally_rows=longs["tally_rows"],
            tallies=tallies.tallies,
            repetition=repetition,
            frequency=frequency,
            presence=presence,
        )
    if "forbidden_rows" in longs:
        forbidden = ForbiddenIds(rows=longs["forbidden_rows"], ids=longs["forbidden_ids"])
    return SamplingBatch(
        temperatures=temperatures,
        # As the kernels of a GPU take it; those of a CPU take all integers wide.
        top_k=(staged.integers if is_on_gpu else longs)["integers"].view(2, num_rows)[0],
        top_p=top_p,
        min_p=min_p,
        seeds=longs["seeds"],
        positions=longs["sample_positions"],
        plain_rows=longs["plain_rows"],
        filtered_rows=longs["filtered_rows"],
        bias=bias,
        penalties=penalties,
        forbidden=forbidden,
    )


def _as_int64(seed: int) -> int:
    """The low 64 bits of a seed as a signed number."""
    low = seed & 0xFFFF_FFFF_FFFF_FFFF
    return low - (1 << 64) if low >= 1 << 63 else low
