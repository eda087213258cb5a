"""A runner that computes each token from KV contents, and really runs each step some time later.

What a row reads goes through the page table, so a page that is wrong, stale, freed too early or
written by somebody else shows in tokens and scores (``fake_model.py`` says what they must be).

The device is a queue: a launched step, and the spoiling of freed pages, run in order at a random
moment up to the step's settle, and read the arrays of the batch only then. A freed page may lie in
the queue's future of a step that reads it, never of a step that writes it (S4, S5): asserted.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tests.worker.fake_model import (
    Counts,
    best,
    choose,
    context_of,
    extend_context,
    score,
    stop_ids,
)

from mizzen_worker.contracts.batch import (
    NO_TOKEN,
    ExtendRow,
    RunnerLimits,
    ScheduleBatch,
    SlotInit,
    StepResult,
    TokenScores,
)

POISON = np.uint64(0xDEADDEADDEADDEAD)


@dataclass
class _Slot:
    """Device state of one slot."""

    init: SlotInit
    counts: Counts
    length: int = 0
    last_token: int = -1
    is_finished: bool = False
    is_masked: bool = False


@dataclass
class _Sampled:
    token: int
    is_finished: bool
    context: int = 0
    num_top: int | None = None


@dataclass
class _Operation:
    """Something in the device's queue; ``pages`` are those it may write."""

    run: Callable[[], None]
    step: int
    pages: set[int] = field(default_factory=set)


class _Pending:
    def __init__(self, runner: "FakeRunner", step: int) -> None:
        self._runner = runner
        self._step = step

    def settle(self) -> StepResult:
        return self._runner._settle(self._step)


class FakeRunner:
    """Executes batches against an array of hashes. Without ``dice`` a step runs when launched."""

    def __init__(self, limits: RunnerLimits, dice: random.Random | None = None) -> None:
        self._limits = limits
        self._dice = dice
        self.max_pages = -(-limits.context_length // limits.page_size)
        self.kv = np.full((limits.num_pages + 1) * limits.page_size, POISON, dtype=np.uint64)
        self.page_rows = np.zeros((limits.max_slots + 1, self.max_pages), dtype=np.int64)
        self.slots: dict[int, _Slot] = {}
        self.batches: list[ScheduleBatch] = []
        self.results: dict[int, StepResult] = {}
        self.unsettled: list[ScheduleBatch] = []
        self.num_masked = 0
        self.max_in_flight = 0
        self.launch_failure: Exception | None = None
        self.settle_failure: Exception | None = None
        self._queue: deque[_Operation] = deque()
        # What the table will be when everything queued has run.
        self._told_rows = self.page_rows.copy()

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def poison(self, pages: np.ndarray) -> None:
        """Spoil pages that nobody may read any more, once what is queued has run."""
        freed = set(pages.tolist())
        for operation in self._queue:
            written = operation.pages & freed
            assert not written, f"pages {written} were freed under step {operation.step}"

        def spoil() -> None:
            self.kv.reshape(-1, self._limits.page_size)[pages] = POISON

        self._queue.append(_Operation(run=spoil, step=0))
        self.run_some()

    def launch(self, batch: ScheduleBatch) -> _Pending:
        if self.launch_failure is not None:
            failure, self.launch_failure = self.launch_failure, None
            raise failure
        assert batch.step == len(self.batches) + 1
        self._require_contract(batch)
        self.batches.append(batch)
        self.unsettled.append(batch)
        self.max_in_flight = max(self.max_in_flight, len(self.unsettled))
        self._queue.append(
            _Operation(run=lambda: self._run(batch), step=batch.step, pages=self._written(batch))
        )
        self.run_some()
        return _Pending(self, batch.step)

    def run_some(self) -> None:
        """Let the device get on by a random amount."""
        left = 0 if self._dice is None else self._dice.randint(0, len(self._queue))
        while len(self._queue) > left:
            self._queue.popleft().run()

    def _settle(self, step: int) -> StepResult:
        if self.settle_failure is not None:
            raise self.settle_failure
        while step not in self.results:
            self._queue.popleft().run()
        assert self.unsettled.pop(0).step == step, "settled out of order"
        return self.results.pop(step)

    # What the device does.

    def _run(self, batch: ScheduleBatch) -> None:
        for init in batch.slot_inits:
            assert (init.history is not None) == init.sampling.has_penalty
            history = [] if init.history is None else init.history.tolist()
            counts = Counts.of(history, init.num_prompt_tokens)
            self.slots[init.slot] = _Slot(init=init, counts=counts)
            self.page_rows[init.slot] = 0
        for write in batch.page_writes:
            end = write.first_page + len(write.pages)
            self.page_rows[write.slot, write.first_page : end] = write.pages
        sampled: list[_Sampled] = []
        prompt_scores = []
        for row in batch.extends:
            contexts = self._forward(row.slot, row.start, row.token_ids.tolist())
            if row.target_ids is not None:
                prompt_scores.append(self._score_prompt(row, contexts))
            if row.is_sampled:
                sampled.append(self._sample(row.slot, contexts[-1]))
        decodes = zip(batch.decodes.slots.tolist(), batch.decodes.starts.tolist(), strict=True)
        for slot, start in decodes:
            if self.slots[slot].is_finished:
                sampled.append(self._mask(self.slots[slot]))
            else:
                assert start == self.slots[slot].length, "a position is computed twice or never"
                contexts = self._forward(slot, start, [self.slots[slot].last_token])
                sampled.append(self._sample(slot, contexts[-1]))
        self.results[batch.step] = StepResult(
            step=batch.step,
            sampled_ids=np.array([row.token for row in sampled], dtype=np.int32),
            is_finished=np.array([row.is_finished for row in sampled], dtype=np.bool_),
            sampled_scores=self._scores_of(sampled),
            prompt_scores=tuple(prompt_scores),
        )

    def _mask(self, state: _Slot) -> _Sampled:
        """A row whose request has ended here, but not yet for the scheduler."""
        assert state.length + 1 < state.init.max_tokens, "an end by length is known in advance"
        assert not state.is_masked, "a request that had ended is launched more than once"
        state.is_masked = True
        self.num_masked += 1
        self.kv[: self._limits.page_size] = POISON
        return _Sampled(token=NO_TOKEN, is_finished=True)

    def _forward(self, slot: int, start: int, tokens: list[int]) -> list[int]:
        """Write the KV of new positions; return the context after each of them."""
        places = self._places(slot, start + len(tokens))
        prefix = self.kv[places[:start]]
        assert not (prefix == POISON).any(), f"slot {slot} reads freed or unwritten KV"
        context = context_of(prefix)
        contexts, new_kv = [], []
        for position, token in enumerate(tokens, start):
            kv, context = extend_context(context, token, position)
            new_kv.append(kv)
            contexts.append(context)
        self.kv[places[start:]] = np.array(new_kv, dtype=np.uint64)
        self.slots[slot].length = start + len(tokens)
        return contexts

    def _sample(self, slot: int, context: int) -> _Sampled:
        state = self.slots[slot]
        init, position = state.init, state.length
        sampling = init.sampling
        num_output = position - init.num_prompt_tokens
        assert num_output >= init.num_generated_tokens
        stops = stop_ids(sampling, init.eos_token_ids)
        is_early = num_output < sampling.min_new_tokens
        token = choose(
            context,
            position,
            sampling,
            state.counts,
            vocab_size=self._limits.vocab_size,
            forbidden=stops if is_early else (),
        )
        state.last_token = token
        state.counts.add(token, is_output=True)
        state.is_finished = (token in stops and not is_early) or position + 1 >= init.max_tokens
        wanted = sampling.logprobs
        return _Sampled(
            token=token,
            is_finished=state.is_finished,
            context=context,
            num_top=None if wanted is None else wanted.num_top,
        )

    def _score_prompt(self, row: ExtendRow, contexts: list[int]) -> TokenScores:
        assert row.target_ids is not None
        wanted = self.slots[row.slot].init.sampling.logprobs
        assert wanted is not None
        first = row.target_start - row.start
        assert first >= 0
        assert first + len(row.target_ids) <= row.num_new
        some = contexts[first : first + len(row.target_ids)]
        return self._scores(
            list(zip(some, row.target_ids.tolist(), strict=True)), num_top=wanted.num_top
        )

    def _scores_of(self, sampled: list[_Sampled]) -> TokenScores | None:
        num_top = max((row.num_top for row in sampled if row.num_top is not None), default=None)
        if num_top is None:
            return None
        return self._scores([(row.context, row.token) for row in sampled], num_top=num_top)

    def _scores(self, pairs: list[tuple[int, int]], *, num_top: int) -> TokenScores:
        tops = [best(context, num_top, self._limits.vocab_size) for context, _ in pairs]
        shape = (len(pairs), num_top)
        return TokenScores(
            logprobs=np.array([score(*pair) for pair in pairs], dtype=np.float32),
            top_ids=np.array([[top[0] for top in row] for row in tops], np.int32).reshape(shape),
            top_logprobs=np.array([[top[1] for top in row] for row in tops], np.float32).reshape(
                shape
            ),
        )

    def _places(self, slot: int, num_tokens: int) -> np.ndarray:
        positions = np.arange(num_tokens)
        page_size = self._limits.page_size
        return self.page_rows[slot, positions // page_size] * page_size + positions % page_size

    # What must hold for a batch when it is launched.

    def _spans(self, batch: ScheduleBatch) -> list[tuple[int, int, int]]:
        """(slot, first position, end) that each row computes."""
        decodes = zip(batch.decodes.slots.tolist(), batch.decodes.starts.tolist(), strict=True)
        return [
            *((row.slot, row.start, row.start + row.num_new) for row in batch.extends),
            *((slot, start, start + 1) for slot, start in decodes),
        ]

    def _written(self, batch: ScheduleBatch) -> set[int]:
        page_size = self._limits.page_size
        pages: set[int] = set()
        for slot, start, end in self._spans(batch):
            row = self._told_rows[slot, start // page_size : (end - 1) // page_size + 1]
            pages.update(row.tolist())
        return pages

    def _require_contract(self, batch: ScheduleBatch) -> None:
        spans = self._spans(batch)
        slots = {slot for slot, _, _ in spans}
        assert len(slots) == batch.num_rows > 0, "a slot twice in a batch"
        assert all(1 <= slot <= self._limits.max_slots for slot in slots)
        touched = {write.slot for write in batch.page_writes}
        touched |= {init.slot for init in batch.slot_inits}
        assert touched <= slots, "a write for a slot that does not run"
        for row in batch.extends:
            assert len(row.token_ids) == row.num_new > 0
        self._require_free_slots(batch)
        for init in batch.slot_inits:
            self._told_rows[init.slot] = 0
        for write in batch.page_writes:
            end = write.first_page + len(write.pages)
            self._told_rows[write.slot, write.first_page : end] = write.pages
        self._require_true_groups(batch)
        page_size = self._limits.page_size
        reached: dict[int, list[int]] = {}
        for slot, _, end in spans:
            pages = self._told_rows[slot, : -(-end // page_size)].tolist()
            assert 0 not in pages, f"slot {slot} reaches the sink page"
            for page in pages:
                reached.setdefault(page, []).append(slot)
        for slot, start, end in spans:
            row = self._told_rows[slot, start // page_size : (end - 1) // page_size + 1]
            for page in row.tolist():
                assert reached[page] == [slot], f"page {page} is written and shared"

    def _require_true_groups(self, batch: ScheduleBatch) -> None:
        """Rows of a group are neighbours, in no other group, and read the very same pages."""
        slots, starts = batch.decodes.slots, batch.decodes.starts
        after = 0
        for group in batch.decodes.groups:
            assert after <= group.first, "groups overlap or are out of order"
            after = group.first + group.count
            assert group.count > 1
            assert after <= len(slots)
            num_pages, rest = divmod(group.num_tokens, self._limits.page_size)
            assert num_pages > 0
            assert rest == 0, "a group shares part of a page"
            assert group.num_tokens <= starts[group.first : after].min()
            pages = self._told_rows[slots[group.first : after], :num_pages]
            assert (pages == pages[0]).all(), f"rows of {group} have different pages"
            assert pages.all()

    def _require_free_slots(self, batch: ScheduleBatch) -> None:
        """A request enters a slot only when no step in flight has a row of it."""
        busy = {slot for step in self.unsettled for slot, _, _ in self._spans(step)}
        entering = {init.slot for init in batch.slot_inits}
        assert not busy & entering, f"slots {busy & entering} are reused under a step in flight"
