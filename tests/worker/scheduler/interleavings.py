"""What several front processes may do to one worker, in any order: drawn from a seed, and judged.

Other than a workload (``workloads.py``), nothing here follows a plan: a request may be sent twice,
replaced by a later attempt at any moment, aborted with a wrong generation or by another peer, and
peers vanish. Whatever happens, each attempt ends once, with tokens of the reference.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec import structs
from tests.worker.cache.event_mirror import EventMirror
from tests.worker.scheduler.harness import OTHER_PEER, PEER, Attempt, Harness, make_submit
from tests.worker.scheduler.workloads import draw_mix, draw_sampling

from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.errors import StepError
from mizzen_worker.contracts.ids import InstanceId, PeerId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Control,
    ControlVerb,
    Finished,
    HandBack,
)
from mizzen_worker.contracts.request import FinishKind, LogprobParams
from mizzen_worker.contracts.schedule_policy import SchedulePolicy

_HEADS = ((), tuple(range(1, 30)), tuple(range(1, 70)), (9,) * 40)
_ORDINARY = {FinishKind.STOP, FinishKind.LENGTH}
_MAX_STEPS_TO_IDLE = 4000


@dataclass
class Interleaving:
    """One worker and its peers, driven by dice."""

    seed: int
    is_overlapped: bool
    policy: SchedulePolicy
    eviction: CacheEviction
    page_size: int
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        dice = self.dice
        num_tokens = dice.randint(max(80, 2 * self.page_size), 260)
        self.harness = Harness(
            page_size=self.page_size,
            num_pages=max(2, -(-num_tokens // self.page_size)),
            max_slots=dice.randint(1, 6),
            max_chunk_tokens=dice.choice((16, 32, 64)),
            max_queued=dice.choice((2, 6, 100)),
            context_length=dice.choice((60, 4096)),
            policy=self.policy,
            is_preemptive=dice.random() < 0.8,
            ageing_s=dice.choice((0.5, 3.0, 30.0)),
            delays=self.seed if self.is_overlapped else None,
            needs_cpu_token=lambda submit: submit.sampling.seed == 3,
            cache_eviction=self.eviction,
            num_kept_cache_events=dice.choice((4, 10_000)),
            mix=draw_mix(dice),
        )
        self.mirror = EventMirror()
        self.peers = [PEER, OTHER_PEER]
        self.lost: set[PeerId] = set()
        self.num_peers = 2
        self.num_requests = 0

    @property
    def live(self) -> list[Attempt]:
        return [
            attempt
            for attempt in self.harness.attempts.values()
            if not attempt.terminals and attempt.peer not in self.lost
        ]

    def play(self, num_steps: int) -> None:
        """Do random things for so many steps, then let everything end and compare the books."""
        for _ in range(num_steps):
            for _ in range(self.dice.choice((0, 0, 1, 1, 2, 4))):
                self._act()
            self.harness.now += self.dice.choice((0.0, 0.01, 0.1, 0.5))
            self.step()
        for _ in range(_MAX_STEPS_TO_IDLE):
            if not self.live and not self.harness.endpoint.inbox:
                break
            self.harness.now += 0.05
            self.step()
        assert not self.live, "requests that never end"
        self.harness.run()
        self.judge()

    def step(self) -> None:
        """One iteration; what subscribers were told is what is cached."""
        self.harness.step()
        cache = self.harness.loop.cache
        log = cache.event_log
        assert log is not None
        events = log.since(self.mirror.next_sequence)
        if events is None:
            self.events["events missed"] += 1
            self.mirror.hashes = set(cache.hashes())
            self.mirror.next_sequence = log.next_sequence
        else:
            self.mirror.apply(events)
        assert self.mirror.hashes == set(cache.hashes())

    def judge(self) -> None:
        """At idle: every attempt ended once, with tokens of the reference, and nothing is held."""
        for attempt in self.harness.attempts.values():
            answer = self.harness.answer(attempt.submit)
            assert attempt.output == answer.output[: len(attempt.output)], attempt.submit
            num_before = len(attempt.submit.generated_ids)
            assert attempt.scores == answer.scores[num_before : num_before + len(attempt.scores)]
            if attempt.peer not in self.lost:
                self._judge_end(attempt)
        counters = self.harness.loop.counters
        load = self.harness.loop.load
        assert (load.running_requests, load.queued_requests, load.queued_tokens) == (0, 0, 0)
        assert load.kv_tokens_used == 0
        for name in ("retractions", "preemptions", "handed_back_requests", "cached_tokens"):
            self.events[name] += getattr(counters, name)
        self.harness.assert_idle_and_whole()

    def _judge_end(self, attempt: Attempt) -> None:
        (terminal,) = attempt.terminals
        if not isinstance(terminal, Finished):
            return
        self.events[f"end by {terminal.reason.kind.value}"] += 1
        if terminal.reason.kind in _ORDINARY:
            answer = self.harness.answer(attempt.submit)
            assert attempt.output == answer.output, attempt.submit
            if not attempt.submit.generated_ids:
                assert attempt.prompt_scores == answer.prompt_scores

    def _act(self) -> None:
        acts = (
            (self._submit, 30),
            (self._supersede, 8),
            (self._repeat, 3),
            (self._steal, 2),
            (self._abort, 8),
            (self._abort_wrongly, 4),
            (self._control, 4),
            (self._lose_peer, 2),
            (self._fail_step, 1),
        )
        (act,) = self.dice.choices([act for act, _ in acts], [weight for _, weight in acts])
        self.events[act.__name__.strip("_")] += 1
        act()

    def _submit(self) -> None:
        dice = self.dice
        self.num_requests += 1
        prompt = dice.choice(_HEADS) + tuple(dice.choices(range(3), k=dice.randint(1, 20)))
        most = self.harness.max_tokens
        sampling = draw_sampling(dice, dice.choice((0, 20)))
        wanted = sampling.get("logprobs")
        if isinstance(wanted, LogprobParams) and (wanted.prompt_start or 0) > len(prompt):
            sampling["logprobs"] = LogprobParams(num_top=1)
        submit = make_submit(
            f"r{self.num_requests}",
            list(prompt[: most + 2]),
            deadline_s=dice.choice((None, None, None, 0.0, dice.uniform(0, 2))),
            priority=dice.choice((0, 0, 1, 5)),
            cache_salt=dice.choice(("", "", "tenant")),
            **sampling,
        )
        if len(prompt) >= most:
            return  # It would be refused, which has no reference.
        self.harness.submit(submit, dice.choice(self.peers))

    def _supersede(self) -> None:
        """Send a later attempt of a live or ended request, with some of the tokens it has."""
        attempts = [one for one in self.harness.attempts.values() if one.peer not in self.lost]
        if not attempts:
            return
        older = self.dice.choice(attempts)
        submit = older.submit
        newest = max(
            generation
            for request_id, generation in self.harness.attempts
            if request_id == submit.request_id
        )
        answer = self.harness.answer(submit).output
        known = older.output[: self.dice.randint(0, len(older.output))]
        if submit.generated_ids and len(known) < len(submit.generated_ids):
            known = list(submit.generated_ids)
        if len(known) == len(answer) and self.dice.random() < 0.5:
            known = known[:-1]
        later = make_submit(
            submit.request_id,
            list(submit.prompt_ids),
            generated=known,
            generation=newest + self.dice.choice((1, 1, 3)),
            priority=submit.priority,
            cache_salt=submit.cache_salt,
        )
        later = structs.replace(later, sampling=submit.sampling)
        self.harness.submit(later, older.peer)

    def _repeat(self) -> None:
        """Send a live request again, or an older attempt of it: dropped without a word."""
        roster = self.harness.state.roster
        if self.harness.endpoint.inbox:
            return
        for attempt in self.live:
            req = roster.get(attempt.submit.request_id)
            if req is not None and req.generation >= attempt.submit.generation:
                self.harness.endpoint.inbox.append((attempt.peer, attempt.submit))
                # It must not end before it is read.
                self.harness.loop._reception.receive()
                return

    def _steal(self) -> None:
        """Use another peer's live request id: refused, and the other one goes on."""
        if self.harness.endpoint.inbox:
            return
        for attempt in self.live:
            submit = attempt.submit
            others = [peer for peer in self.peers if peer != attempt.peer]
            req = self.harness.state.roster.get(submit.request_id)
            if req is None or req.peer != attempt.peer or not others:
                continue
            thief = make_submit(submit.request_id, [1, 2], generation=10**6 + self.num_requests)
            self.num_requests += 1
            key = (thief.request_id, thief.generation)
            stolen = self.harness.submit(thief, others[0])
            self.harness.loop._reception.receive()
            self.harness._read()
            reason = stolen.finished.reason
            assert reason.kind is FinishKind.ERROR
            del self.harness.attempts[key]
            return

    def _abort(self) -> None:
        if self.live:
            self.harness.abort(self.dice.choice(self.live))

    def _abort_wrongly(self) -> None:
        """A wrong generation, or another peer: nothing happens."""
        if not self.live:
            return
        attempt = self.dice.choice(self.live)
        message = Abort(
            request_id=attempt.submit.request_id, generation=attempt.submit.generation + 10**7
        )
        self.harness.endpoint.inbox.append((attempt.peer, message))
        others = [peer for peer in self.peers if peer != attempt.peer]
        if others:
            self.harness.abort(attempt, others[0])

    def _control(self) -> None:
        dice = self.dice
        verb = dice.choice((ControlVerb.FLUSH_CACHE, ControlVerb.DESCRIBE, ControlVerb.ABORT))
        arguments = {}
        if verb is ControlVerb.ABORT:
            name = dice.choice(self.live).submit.request_id if self.live else "nobody"
            arguments = {} if dice.random() < 0.1 else {"request_id": str(name)}
        control = Control(control_id=1, verb=verb, arguments=arguments)
        self.harness.endpoint.inbox.append((dice.choice(self.peers), control))

    def _lose_peer(self) -> None:
        """A front dies, and another one comes."""
        peer = self.dice.choice(self.peers)
        self.peers.remove(peer)
        self.lost.add(peer)
        inbox = self.harness.endpoint.inbox
        left = [(sender, message) for sender, message in inbox if sender != peer]
        inbox.clear()
        inbox.extend(left)
        self.harness.endpoint.newly_lost.append(peer)
        self.num_peers += 1
        self.peers.append(PeerId(f"front-{self.num_peers}".encode()))
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=10**6)
        inbox.append((self.peers[-1], attach))

    def _fail_step(self) -> None:
        self.harness.runner.launch_failure = StepError("no room")

    def drain(self) -> None:
        """Send a few more, and end with a drain of either mode, perhaps with a deadline."""
        for _ in range(6):
            self._submit()
        self.step()
        arguments = {"mode": self.dice.choice(("finish", "handback"))}
        if self.dice.random() < 0.5:
            arguments["deadline_s"] = str(self.dice.choice((0, 0.2, 5)))
        self.harness.control(Control(control_id=2, verb=ControlVerb.DRAIN, arguments=arguments))
        for _ in range(_MAX_STEPS_TO_IDLE):
            if not self.live and not self.harness.endpoint.inbox:
                break
            self.harness.now += 0.05
            self.step()
        assert self.harness.loop.is_drained
        assert all(isinstance(one, Finished | HandBack) for a in self.live for one in a.terminals)
        self.judge()
