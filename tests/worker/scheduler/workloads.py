"""Random workloads for the equality rule: what comes when, on what sizes, and what goes wrong.

A workload is drawn from a seed and played to its end: on one worker, or, where that one is drained
or fails, on the next, as the tokenizer side would do it. Everything that must not show in an answer
is drawn too. ``EVENTS`` names what a set of workloads has to meet for the rule to mean something.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from tests.worker.fake_model import Expected, Scored, expected
from tests.worker.scheduler.harness import (
    EOS,
    OTHER_PEER,
    PEER,
    VOCAB,
    Attempt,
    Harness,
    make_submit,
)

from mizzen_worker.contracts.batch import ScheduleBatch
from mizzen_worker.contracts.errors import DeviceError, StepError
from mizzen_worker.contracts.messages import Control, ControlVerb, Finished, HandBack, Submit
from mizzen_worker.contracts.request import FinishKind, LogprobParams
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.req import ReqState
from mizzen_worker.scheduler.step_mix import MixRule

SECONDS_PER_STEP = 0.1
EVENTS = (
    "retraction", "preemption", "abort in flight", "deadline", "chunk", "mixed batch", "cached",
    "eviction", "resume", "resume while decoding", "drain", "device error", "step error", "flush",
    "end by eos", "end by stop id", "end by length", "penalty", "scored", "prompt scored in chunks",
    "shared prefix", "passed over", "decode turn",
)  # fmt: skip
"""With or without overlap."""
OVERLAP_EVENTS = ("masked no-op", "departure")


@dataclass(frozen=True)
class Order:
    """A request, when it comes and, perhaps, when its client leaves (in steps)."""

    name: str
    prompt: tuple[int, ...]
    sampling: dict[str, object]
    arrives: int
    leaves: int | None = None
    deadline_s: float | None = None
    priority: int = 0
    salt: str = ""
    num_known: int = 0
    """Tokens that an earlier attempt is said to have produced."""


@dataclass(frozen=True)
class World:
    """Sizes that must not show in any output."""

    page_size: int
    num_pages: int
    max_slots: int
    max_chunk_tokens: int
    policy: SchedulePolicy = SchedulePolicy.FCFS
    mix: MixRule = field(default_factory=MixRule)


@dataclass(frozen=True)
class Workload:
    """``drains``, ``device_errors``, ``step_errors`` and ``flushes`` are steps."""

    world: World
    orders: tuple[Order, ...]
    drains: frozenset[int] = frozenset()
    device_errors: frozenset[int] = frozenset()
    step_errors: frozenset[int] = frozenset()
    flushes: frozenset[int] = frozenset()


@dataclass
class Story:
    """What became of one order over all its attempts."""

    order: Order
    expected: Expected
    output: list[int] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    attempt: Attempt | None = None
    kind: FinishKind | None = None
    generation: int = 0

    def submit(self) -> Submit:
        submit = make_submit(
            self.order.name,
            list(self.order.prompt),
            generated=self.output,
            generation=self.generation,
            deadline_s=self.order.deadline_s,
            cache_salt=self.order.salt,
            priority=self.order.priority,
            **self.order.sampling,
        )
        self.generation += 1
        return submit

    def take(self) -> None:
        """Book what the newest attempt gave, and check it against the reference."""
        attempt = self.attempt
        assert attempt is not None
        num_before = len(attempt.submit.generated_ids)
        self.output = list(attempt.output)
        self.scores += attempt.scores
        assert self.output == self.expected.output[: len(self.output)]
        assert attempt.scores == self.expected.scores[num_before : num_before + len(attempt.scores)]
        is_begun = len(self.output) > num_before
        wanted = self.expected.prompt_scores
        given = attempt.prompt_scores
        assert given == ([] if num_before else wanted if is_begun else wanted[: len(given)])
        self.attempt = None


def draw_sampling(dice: random.Random, arrives: int) -> dict[str, object]:
    """Every feature now and then, so that they meet in a batch."""
    # Short at first and long later, so that the prediction of lengths is wrong: retractions.
    lengths = (1, 2, 3, 5) if arrives < 15 else (2, 12, 60, 60)
    sampling: dict[str, object] = {
        "max_new_tokens": dice.choice(lengths),
        "temperature": dice.choice((0.0, 1.0)),
        "seed": dice.randrange(4),
        "ignore_eos": dice.random() < 0.5,
    }
    if dice.random() < 0.25:
        sampling["repetition_penalty"] = 1.2
        sampling["frequency_penalty"] = 0.5
    if dice.random() < 0.2:
        sampling["logit_bias"] = ((dice.randrange(9), 2.0),)
    if dice.random() < 0.3:
        sampling["stop_token_ids"] = tuple(dice.sample(range(1, 61), 3))
    if dice.random() < 0.2:
        sampling["min_new_tokens"] = dice.randrange(8)
    if dice.random() < 0.3:
        start = dice.choice((None, 0, 3, 30))
        sampling["logprobs"] = LogprobParams(num_top=dice.randrange(3), prompt_start=start)
    return sampling


def draw(seed: int, num_orders: int = 24) -> Workload:
    """Draw a workload."""
    dice = random.Random(seed)
    page_size = dice.choice((1, 4, 4, 16, 64))
    num_tokens = dice.randint(140, 300) if page_size < 64 else dice.randint(256, 640)
    heads = ((), tuple(range(1, 30)), tuple(range(1, 60)), (9,) * 40)
    orders: list[Order] = []
    while len(orders) < num_orders:
        head = dice.choice(heads)
        if orders and dice.random() < 0.25:
            head = _conversation(dice.choice(orders), head)
        prompt = head + tuple(dice.choices(range(3), k=dice.randint(1, 20)))
        arrives = dice.randrange(40)
        sampling = draw_sampling(dice, arrives)
        for sibling in range(dice.choice((1, 1, 1, 3))):
            start = sampling.get("logprobs")
            if isinstance(start, LogprobParams) and (start.prompt_start or 0) > len(prompt):
                sampling = {**sampling, "logprobs": LogprobParams(num_top=1)}
            orders.append(
                Order(
                    name=f"r{len(orders)}",
                    prompt=prompt,
                    sampling={**sampling, "seed": sibling},
                    arrives=arrives,
                    leaves=dice.choice((None, None, None, dice.randrange(20))),
                    deadline_s=dice.choice((None, None, None, dice.uniform(0.1, 4.0))),
                    priority=dice.choice((0, 0, 0, 5)),
                    salt=dice.choice(("", "", "", "tenant")),
                    num_known=dice.choice((0, 0, 0, 4)),
                )
            )
    workload = Workload(
        world=World(
            page_size=page_size,
            num_pages=-(-num_tokens // page_size),
            max_slots=dice.randint(2, 10),
            max_chunk_tokens=dice.choice((16, 32, 64)),
            policy=dice.choice(tuple(SchedulePolicy)),
        ),
        orders=tuple(orders),
        drains=_some_steps(dice, 0.3),
        device_errors=_some_steps(dice, 0.3),
        step_errors=_some_steps(dice, 0.3),
        flushes=_some_steps(dice, 0.5),
    )
    mix = draw_mix(dice)
    return replace(workload, world=replace(workload.world, mix=mix))


def draw_mix(dice: random.Random) -> MixRule:
    """Half of all mix always; the patience of others is from less than a step to for ever."""
    patience_s = dice.choice((0.0, 0.0, 0.0, 0.05, 0.3, 1e6))
    return MixRule(patience_s=patience_s, max_riding_tokens=dice.choice((0, 4, 20)))


def _conversation(order: Order, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt of a next turn: prompt and whole answer of an earlier order, if short enough."""
    answer = expected(order.prompt, _plain(order).sampling, vocab_size=VOCAB, eos_token_ids=(EOS,))
    turn = (*order.prompt, *answer.output)
    return turn if len(turn) < 100 else otherwise


def _some_steps(dice: random.Random, likelihood: float) -> frozenset[int]:
    return frozenset({dice.randrange(5, 70)} if dice.random() < likelihood else ())


class Play:
    """One workload, played once; ``delays`` as for the harness."""

    def __init__(self, workload: Workload, delays: int | None) -> None:
        self.workload = workload
        self.delays = delays
        self.events: Counter[str] = Counter()
        self.step = 0
        self._is_dead = False
        self.harness = self._start_worker()
        self.stories = {
            order.name: Story(order=order, expected=self.harness.answer(_plain(order)))
            for order in workload.orders
        }
        for story in self.stories.values():
            self._start_midway(story)

    def run(self, max_steps: int = 5000) -> dict[str, Story]:
        """Play to the end; every answer is checked on the way."""
        last_arrival = max(order.arrives for order in self.workload.orders)
        while self.step <= last_arrival or any(story.attempt for story in self.stories.values()):
            assert self.step < max_steps, "not done"
            self._send()
            self._turn()
            self._collect()
            self.step += 1
        self.harness.run()
        self.harness.assert_idle_and_whole()
        self._count_worker()
        for story in self.stories.values():
            self._check_end(story)
        return self.stories

    def _start_worker(self) -> Harness:
        world = self.workload.world
        harness = Harness(
            page_size=world.page_size,
            num_pages=world.num_pages,
            max_slots=world.max_slots,
            max_chunk_tokens=world.max_chunk_tokens,
            policy=world.policy,
            ageing_s=2.0,
            delays=self.delays,
            mix=world.mix,
        )
        core = harness.state.residency.cache._core
        evict = core.evict

        def counted(component_index: int, num_units: int):
            evicted = evict(component_index, num_units)
            self.events["eviction"] += evicted.num_units > 0
            return evicted

        core.evict = counted
        launch = harness.runner.launch

        def watched(batch: ScheduleBatch):
            num_due = len(harness.state.residency.book.due())
            self.events["passed over"] += num_due > 0 and not len(batch.decodes.slots)
            running = harness.state.roster.running
            is_prompt_left = any(req.state is ReqState.PREFILLING for req in running)
            self.events["decode turn"] += is_prompt_left and not batch.extends
            return launch(batch)

        harness.runner.launch = watched
        return harness

    def _start_midway(self, story: Story) -> None:
        """Let an order come as one that another worker began."""
        known = story.expected.output[: story.order.num_known]
        if len(known) < len(story.expected.output):
            story.output = known

    def _send(self) -> None:
        for number, story in enumerate(self.stories.values()):
            order = story.order
            if order.arrives == self.step:
                self._submit(story, number)
            is_leaving = order.leaves is not None and order.arrives + order.leaves == self.step
            if is_leaving and story.attempt is not None:
                self.events["abort in flight"] += self._is_in_flight(order.name)
                self.harness.abort(story.attempt)
        if self.step in self.workload.flushes:
            self._control(ControlVerb.FLUSH_CACHE)
        if self.step in self.workload.drains:
            self._control(ControlVerb.DRAIN)

    def _submit(self, story: Story, number: int) -> None:
        self.events["resume"] += bool(story.output)
        story.attempt = self.harness.submit(story.submit(), (PEER, OTHER_PEER)[number % 2])

    def _control(self, verb: ControlVerb) -> None:
        self.events[verb.value.removesuffix("_cache")] += 1
        self.harness.control(Control(control_id=1, verb=verb))

    def _is_in_flight(self, name: str) -> bool:
        state = self.harness.state
        req = state.roster.get(name)
        return (
            req is not None
            and req.slot is not None
            and (self.delays is None or state.residency.book.is_in_flight(req.slot))
        )

    def _turn(self) -> None:
        runner = self.harness.runner
        self.harness.now = self.step * SECONDS_PER_STEP
        if self.step in self.workload.step_errors:
            runner.launch_failure = StepError("no room")
        if self.step in self.workload.device_errors:
            runner.settle_failure = DeviceError("gone")
        try:
            self.harness.step()
        except DeviceError:
            self._is_dead = True
            self.events["device error"] += 1
            self.harness.loop.announce_restart()
            self.harness._read()
        self.events["departure"] += len(self.harness.state.residency.departures)

    def _collect(self) -> None:
        """Take what has ended; where a worker gave requests back, go on with the next one."""
        lost = []
        for story in self.stories.values():
            if story.attempt is None or not (story.attempt.terminals or self._is_dead):
                continue
            # Who had not been heard when the worker died finds out by its silence.
            terminal = next(iter(story.attempt.terminals), None)
            num_known = len(story.attempt.submit.generated_ids)
            story.take()
            if isinstance(terminal, Finished):
                story.kind = terminal.reason.kind
                assert terminal.usage.completion_tokens == len(story.output)
                if terminal.reason.kind is FinishKind.STOP:
                    name = "eos" if terminal.reason.matched == EOS else "stop id"
                    self.events[f"end by {name}"] += 1
            else:
                assert isinstance(terminal, HandBack) or self._is_dead
                lost.append(story)
                self.events["resume while decoding"] += len(story.output) > num_known
        if lost or self._is_dead:
            self._is_dead = False
            self._count_worker()
            self.harness = self._start_worker()
            self.harness.now = self.step * SECONDS_PER_STEP
            for number, story in enumerate(lost):
                self._submit(story, number)

    def _count_worker(self) -> None:
        loop, runner = self.harness.loop, self.harness.runner
        events, counters = self.events, loop.counters
        events["retraction"] += counters.retractions
        events["preemption"] += counters.preemptions
        events["cached"] += counters.cached_tokens > 0
        events["deadline"] += counters.finished_requests[FinishKind.DEADLINE]
        events["step error"] += counters.finished_requests[FinishKind.ERROR]
        events["end by length"] += counters.finished_requests[FinishKind.LENGTH]
        events["masked no-op"] += runner.num_masked
        for batch in runner.batches:
            events["mixed batch"] += batch.mode.value == "mixed"
            events["shared prefix"] += bool(batch.decodes.groups)
            events["penalty"] += any(init.history is not None for init in batch.slot_inits)
            for row in batch.extends:
                events["chunk"] += not row.is_sampled
                events["prompt scored in chunks"] += (
                    row.target_ids is not None and row.start > 0 and row.num_new > 1
                )
        events["scored"] += sum(bool(attempt.scores) for attempt in self.harness.attempts.values())
        assert runner.max_in_flight <= (1 if self.delays is None else 2)

    def _check_end(self, story: Story) -> None:
        assert story.kind is not None, story.order
        if story.kind in (FinishKind.STOP, FinishKind.LENGTH):
            assert story.output == story.expected.output, story.order


def _plain(order: Order) -> Submit:
    return make_submit(order.name, list(order.prompt), **order.sampling)
