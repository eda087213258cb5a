"""The equality rule: a request's tokens depend on nothing but the request.

Every workload below runs on a runner that computes tokens from KV contents, with freed pages
spoiled and every book audited after every step, and must give the tokens of a plain function.
"""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.scheduler.harness import OTHER_PEER, PEER, Attempt, Harness, make_submit

from mizzen_worker.contracts.messages import (
    Control,
    ControlVerb,
    Finished,
    HandBack,
    HandBackCause,
)
from mizzen_worker.contracts.request import FinishKind


@dataclass(frozen=True)
class Order:
    """A request, when it comes and, perhaps, when its client leaves (in steps)."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    arrives: int
    leaves: int | None
    salt: str


@dataclass(frozen=True)
class World:
    """Sizes that must not show in any output."""

    page_size: int
    num_pages: int
    max_slots: int
    max_chunk_tokens: int


PROMPT = st.tuples(
    st.sampled_from([(), tuple(range(1, 20)), tuple(range(1, 70)), (7,) * 33]),
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
).map(lambda parts: parts[0] + tuple(parts[1]))
ORDER = st.builds(
    Order,
    prompt=PROMPT,
    max_new_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 3),
    arrives=st.integers(0, 40),
    leaves=st.none() | st.integers(0, 60),
    salt=st.sampled_from(["", "", "tenant"]),
)
WORLD = st.one_of(
    st.builds(
        World,
        page_size=st.just(page_size),
        num_pages=st.integers(-(-160 // page_size), -(-400 // page_size)),
        max_slots=st.integers(1, 6),
        max_chunk_tokens=st.integers(page_size, 96),
    )
    for page_size in (1, 16, 64)
)


def run_orders(world: World, orders: list[Order], delays: int | None) -> Harness:
    """Play a workload to its end."""
    harness = Harness(
        page_size=world.page_size,
        num_pages=world.num_pages,
        max_slots=world.max_slots,
        max_chunk_tokens=world.max_chunk_tokens,
        delays=delays,
    )
    attempts: dict[int, Attempt] = {}
    for step in range(101):
        for number, order in enumerate(orders):
            if order.arrives == step:
                submit = make_submit(
                    f"r{number}",
                    list(order.prompt),
                    max_new_tokens=order.max_new_tokens,
                    temperature=order.temperature,
                    seed=order.seed,
                    cache_salt=order.salt,
                )
                peer = PEER if number % 2 else OTHER_PEER
                attempts[number] = harness.submit(submit, peer=peer)
            if order.leaves is not None and order.arrives + order.leaves == step:
                harness.abort(attempts[number])
        harness.step()
    harness.run()
    return harness


def assert_equal_to_reference(harness: Harness) -> None:
    """Each attempt ended once; tokens are the reference's, or a prefix of them after an abort."""
    for attempt in harness.attempts.values():
        expected = harness.expected(attempt.submit)
        if attempt.finished.reason.kind is FinishKind.ABORT:
            assert attempt.output == expected[: len(attempt.output)]
        else:
            assert attempt.output == expected
        usage = attempt.finished.usage
        assert usage.completion_tokens == len(attempt.output)
        assert usage.cached_tokens < usage.prompt_tokens
    harness.assert_idle_and_whole()


@given(
    world=WORLD,
    orders=st.lists(ORDER, min_size=1, max_size=12),
    delays=st.none() | st.integers(0, 3),
)
def test_outputs_depend_on_nothing_but_the_request(
    world: World, orders: list[Order], delays: int | None
) -> None:
    assert_equal_to_reference(run_orders(world, orders, delays))


def _random_orders(dice: random.Random, count: int) -> list[Order]:
    heads = [(), tuple(range(1, 30)), tuple(range(1, 60)), (9,) * 40]
    return [
        Order(
            prompt=dice.choice(heads) + tuple(dice.choices(range(3), k=dice.randint(1, 20))),
            # Mostly short and sometimes long, so that the prediction is wrong now and then.
            max_new_tokens=dice.choice((2, 3, 5, 60)),
            temperature=dice.choice((0.0, 1.0)),
            seed=dice.randrange(4),
            arrives=dice.randrange(60),
            leaves=dice.choice((None, None, None, dice.randrange(20))),
            salt="",
        )
        for _ in range(count)
    ]


def _play_seeds(seeds: range, delays: int | None) -> dict[str, int]:
    """Play random workloads on tight pools; count the events they are there for."""
    events = {"retractions": 0, "aborts": 0, "cached": 0, "chunked": 0, "mixed": 0}
    for seed in seeds:
        dice = random.Random(seed)
        page_size = dice.choice((1, 4, 16))
        world = World(
            page_size=page_size,
            num_pages=-(-dice.randint(140, 300) // page_size),
            max_slots=dice.randint(2, 10),
            max_chunk_tokens=dice.choice((16, 32, 64)),
        )
        harness = run_orders(world, _random_orders(dice, 40), delays)
        assert_equal_to_reference(harness)
        counters = harness.loop.counters
        events["retractions"] += counters.retractions
        events["aborts"] += counters.finished_requests[FinishKind.ABORT]
        events["cached"] += counters.cached_tokens
        for batch in harness.runner.batches:
            events["mixed"] += batch.mode.value == "mixed"
            events["chunked"] += any(not row.is_sampled for row in batch.extends)
    return events


@pytest.mark.parametrize("delays", [None, 1])
def test_random_workloads_meet_every_event(delays: int | None) -> None:
    assert all(count > 0 for count in _play_seeds(range(8), delays).values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("delays", [None, 1])
def test_many_random_workloads(delays: int | None) -> None:
    assert all(count >= 100 for count in _play_seeds(range(1000, 1200), delays).values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_move_between_workers_by_drain(temperature: float) -> None:
    """Each worker drains after a few steps; the next continues from what was streamed."""
    submits = {
        f"r{number}": make_submit(
            f"r{number}",
            [number, *range(number * 5)],
            max_new_tokens=30,
            ignore_eos=True,
            temperature=temperature,
            seed=number,
        )
        for number in range(6)
    }
    expected = {name: Harness().expected(submit) for name, submit in submits.items()}
    outputs: dict[str, list[int]] = {name: [] for name in submits}
    left, generation = set(submits), 0
    while left:
        worker = Harness(page_size=(1, 4, 16)[generation % 3], max_chunk_tokens=16, max_slots=4)
        attempts = {
            name: worker.submit(
                make_submit(
                    name,
                    list(submits[name].prompt_ids),
                    max_new_tokens=30,
                    ignore_eos=True,
                    temperature=temperature,
                    seed=submits[name].sampling.seed,
                    generated=outputs[name],
                    generation=generation,
                )
            )
            for name in sorted(left)
        }
        for _ in range(7):
            worker.step()
        worker.control(Control(control_id=1, verb=ControlVerb.DRAIN))
        worker.run()
        worker.assert_idle_and_whole()
        for name, attempt in attempts.items():
            outputs[name] = attempt.output
            (terminal,) = attempt.terminals
            if isinstance(terminal, Finished):
                left.remove(name)
            else:
                assert isinstance(terminal, HandBack)
                assert terminal.cause is HandBackCause.DRAINING
        generation += 1
    assert outputs == expected
    assert generation > 3
