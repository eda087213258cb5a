"""A runner that computes each token from KV contents, so that a wrong page changes the output.

The KV of a position mixes its token, its index and everything before it *as read through the page
table*; a token mixes all KV the slot's row reaches. A page that is wrong, stale, freed too early or
written by somebody else therefore shows in the tokens. ``expected_output`` says what they must be,
from the token ids alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import (
    RunnerLimits,
    ScheduleBatch,
    SlotInit,
    StepResult,
)
from mizzen_worker.contracts.request import SamplingParams

_MASK = 2**64 - 1
_PLACE = 0x9E3779B97F4A7C15
POISON = np.uint64(0xDEADDEADDEADDEAD)


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _extend_context(context: int, token: int, position: int) -> tuple[int, int]:
    """Return the KV of a position and the context that includes it."""
    kv = _mix(context + token * 0x2545F4914F6CDD1D + position * _PLACE + 1)
    return kv, (context + _mix(kv ^ (position * _PLACE & _MASK))) & _MASK


def _sample(
    context: int,
    position: int,
    sampling: SamplingParams,
    *,
    vocab_size: int,
    forbidden: Sequence[int],
) -> int:
    drawn = 0 if sampling.temperature == 0 else _mix(sampling.seed * _PLACE + position)
    token = _mix(context ^ drawn) % vocab_size
    while token in forbidden:
        token = (token + 1) % vocab_size
    return token


def expected_output(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    max_tokens: int = 10**9,
) -> list[int]:
    """Compute a request's whole output from its ids: no pages, no batches, no scheduler."""
    context, tokens, output = 0, list(prompt), []
    stops = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)]
    for position, token in enumerate(tokens):
        _, context = _extend_context(context, token, position)
    while True:
        forbidden = stops if len(output) < sampling.min_new_tokens else ()
        token = _sample(context, len(tokens), sampling, vocab_size=vocab_size, forbidden=forbidden)
        output.append(token)
        tokens.append(token)
        is_full = len(output) >= sampling.max_new_tokens or len(tokens) >= max_tokens
        if is_full or (token in stops and len(output) > sampling.min_new_tokens):
            return output
        _, context = _extend_context(context, token, len(tokens) - 1)


@dataclass(frozen=True)
class _Row:
    slot: int
    start: int
    num_new: int
    token_ids: np.ndarray | None
    is_sampled: bool


def _rows(batch: ScheduleBatch) -> list[_Row]:
    extends = [
        _Row(row.slot, row.start, row.num_new, row.token_ids, row.is_sampled)
        for row in batch.extends
    ]
    decodes = zip(batch.decodes.slots.tolist(), batch.decodes.starts.tolist(), strict=True)
    return extends + [_Row(slot, start, 1, None, is_sampled=True) for slot, start in decodes]


class _Pending:
    def __init__(self, result: StepResult, failure: Exception | None) -> None:
        self._result: StepResult | None = result
        self._failure = failure

    def settle(self) -> StepResult:
        if self._failure is not None:
            raise self._failure
        result, self._result = self._result, None
        assert result is not None, "settled twice"
        return result


class FakeRunner:
    """Executes batches against an array of hashes instead of KV tensors."""

    def __init__(self, limits: RunnerLimits) -> None:
        self._limits = limits
        max_pages = -(-limits.context_length // limits.page_size)
        self.kv = np.full((limits.num_pages + 1) * limits.page_size, POISON, dtype=np.uint64)
        self.page_rows = np.zeros((limits.max_slots + 1, max_pages), dtype=np.int64)
        self.inits: dict[int, SlotInit] = {}
        self.last_tokens: dict[int, int] = {}
        self.batches: list[ScheduleBatch] = []
        self.launch_failure: Exception | None = None
        self.settle_failure: Exception | None = None

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def poison(self, pages: np.ndarray) -> None:
        """Spoil pages that nobody may read any more."""
        for offset in range(self._limits.page_size):
            self.kv[pages * self._limits.page_size + offset] = POISON

    def launch(self, batch: ScheduleBatch) -> _Pending:
        if self.launch_failure is not None:
            failure, self.launch_failure = self.launch_failure, None
            raise failure
        assert batch.step == len(self.batches) + 1
        self.batches.append(batch)
        for init in batch.slot_inits:
            self.inits[init.slot] = init
            self.page_rows[init.slot] = 0
        for write in batch.page_writes:
            end = write.first_page + len(write.pages)
            self.page_rows[write.slot, write.first_page : end] = write.pages
        rows = _rows(batch)
        self._require_contract(batch, rows)
        contexts = [self._forward(row) for row in rows]
        sampled = [
            self._sample(row, context)
            for row, context in zip(rows, contexts, strict=True)
            if row.is_sampled
        ]
        result = StepResult(
            step=batch.step,
            sampled_ids=np.array(sampled, dtype=np.int32),
            is_finished=np.array(
                [self._is_finished(row) for row in rows if row.is_sampled], dtype=np.bool_
            ),
        )
        return _Pending(result, self.settle_failure)

    def _forward(self, row: _Row) -> int:
        tokens = [self.last_tokens[row.slot]] if row.token_ids is None else row.token_ids.tolist()
        assert len(tokens) == row.num_new
        places = self._places(row.slot, row.start)
        prefix = self.kv[places]
        assert not (prefix == POISON).any(), f"slot {row.slot} reads freed or unwritten KV"
        spread = np.arange(row.start, dtype=np.uint64) * np.uint64(_PLACE)
        context = int(_mix_array(prefix ^ spread).sum(dtype=np.uint64)) if row.start else 0
        new_places = self._places(row.slot, row.start + row.num_new)[row.start :]
        for position, place, token in zip(
            range(row.start, row.start + row.num_new), new_places, tokens, strict=True
        ):
            kv, context = _extend_context(context, token, position)
            self.kv[place] = kv
        return context

    def _sample(self, row: _Row, context: int) -> int:
        init = self.inits[row.slot]
        position = row.start + row.num_new
        num_output = position - init.num_prompt_tokens
        assert num_output >= init.num_generated_tokens
        stops = (*init.sampling.stop_token_ids, *init.eos_token_ids)
        token = _sample(
            context,
            position,
            init.sampling,
            vocab_size=self._limits.vocab_size,
            forbidden=stops if num_output < init.sampling.min_new_tokens else (),
        )
        self.last_tokens[row.slot] = token
        return token

    def _is_finished(self, row: _Row) -> bool:
        init = self.inits[row.slot]
        num_tokens = row.start + row.num_new + 1
        stops = (*init.sampling.stop_token_ids, *init.eos_token_ids)
        is_stop = self.last_tokens[row.slot] in stops
        num_output = num_tokens - init.num_prompt_tokens
        is_early = num_output <= init.sampling.min_new_tokens
        return (is_stop and not is_early) or num_tokens >= init.max_tokens

    def _places(self, slot: int, num_tokens: int) -> np.ndarray:
        positions = np.arange(num_tokens)
        page_size = self._limits.page_size
        return self.page_rows[slot, positions // page_size] * page_size + positions % page_size

    def _require_contract(self, batch: ScheduleBatch, rows: list[_Row]) -> None:
        slots = [row.slot for row in rows]
        assert len(set(slots)) == len(slots), "a slot twice in a batch"
        assert all(1 <= slot <= self._limits.max_slots for slot in slots)
        touched = {write.slot for write in batch.page_writes}
        touched |= {init.slot for init in batch.slot_inits}
        assert touched <= set(slots), "a write for a slot that does not run"
        page_size = self._limits.page_size
        reached: dict[int, list[int]] = {}
        for row in rows:
            num_pages = -(-(row.start + row.num_new) // page_size)
            pages = self.page_rows[row.slot, :num_pages].tolist()
            assert 0 not in pages, f"slot {row.slot} reaches the sink page"
            for page in pages:
                reached.setdefault(page, []).append(row.slot)
        for row in rows:
            first, end = row.start // page_size, (row.start + row.num_new - 1) // page_size + 1
            for page in self.page_rows[row.slot, first:end].tolist():
                assert reached[page] == [row.slot], f"page {page} is written and shared"
