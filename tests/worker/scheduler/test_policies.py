"""The orders of waiting requests and the choice of who makes room, as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.ids import NodeId
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.admission import Admitted, Budget, Candidate, decide
from mizzen_worker.scheduler.policies import (
    STANDING_KEYS,
    Standing,
    claim,
    depth_first,
    longest_prefix_first,
    take_turns,
)
from mizzen_worker.scheduler.preemption import Occupant, choose_victims


@pytest.mark.parametrize(
    ("policy", "orders"),
    [
        (SchedulePolicy.FCFS, [1, 2, 3, 4]),
        (SchedulePolicy.LPM, [1, 2, 3, 4]),
        (SchedulePolicy.DFS_WEIGHT, [1, 2, 3, 4]),
        (SchedulePolicy.LOF, [3, 1, 4, 2]),
        (SchedulePolicy.PRIORITY, [2, 4, 1, 3]),
    ],
)
def test_standing(policy: SchedulePolicy, orders: list[int]) -> None:
    standings = [
        Standing(order=1, priority=0, max_output=50),
        Standing(order=2, priority=7, max_output=10),
        Standing(order=3, priority=-1, max_output=900),
        Standing(order=4, priority=7, max_output=50),
    ]
    ranked = sorted(standings, key=STANDING_KEYS[policy])
    assert [standing.order for standing in ranked] == orders


def _path(*nodes: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, nodes))


def test_the_longest_prefix_is_first_and_the_earlier_among_equals() -> None:
    assert longest_prefix_first([0, 3, 9, 3]) == [2, 1, 3, 0]


def test_siblings_follow_each_other_and_the_heaviest_branch_is_first() -> None:
    paths = [
        _path(),
        _path(10),
        _path(20, 21),
        _path(10, 11),
        _path(20, 22),
        _path(20),
        _path(20, 22),
    ]
    # Branch 20 holds four and 10 two; in 20, branch 22 holds two; what ends at a fork is last.
    assert depth_first(paths, current=()) == [4, 6, 2, 5, 3, 1, 0]
    # A walk that has begun goes on where it is.
    assert depth_first(paths, current=_path(10, 11)) == [3, 1, 4, 6, 2, 5, 0]


PATHS = st.lists(st.integers(0, 2), max_size=4).map(
    # A node's id says the whole way down to it, as in a tree.
    lambda turns: tuple(
        NodeId(sum((turn + 1) * 4**depth for depth, turn in enumerate(turns[: end + 1])))
        for end in range(len(turns))
    )
)


@given(paths=st.lists(PATHS, max_size=12), current=PATHS)
def test_every_subtree_is_one_stretch_of_the_order(
    paths: list[tuple[NodeId, ...]], current: tuple[NodeId, ...]
) -> None:
    arranged = depth_first(paths, current=current)
    assert sorted(arranged) == list(range(len(paths)))
    for node in {node for path in paths for node in path}:
        places = [place for place, index in enumerate(arranged) if node in paths[index]]
        assert places == list(range(places[0], places[0] + len(places)))


@given(
    items=st.lists(st.integers(), unique=True, max_size=10).map(
        lambda numbers: [(number,) for number in numbers]
    ),
    data=st.data(),
    is_age_first=st.booleans(),
)
def test_turns_give_everybody_once_and_age_every_second_place(items, data, is_age_first) -> None:
    by_policy = data.draw(st.permutations(items))
    num_old = data.draw(st.integers(0, len(items)))
    by_age = items[:num_old]
    turns = list(take_turns(by_policy, by_age, is_age_first=is_age_first))
    assert sorted(item for item, _ in turns) == sorted(items)
    for place, item in enumerate(by_age):
        assert [turn for turn, _ in turns].index(item) <= 2 * place + 1
    for place, item in enumerate(by_policy):
        assert [turn for turn, _ in turns].index(item) <= 2 * place + 1


BUDGET = st.builds(
    Budget,
    page_size=st.just(4),
    slots=st.integers(0, 1),
    chunk_tokens=st.integers(-40, 40),
    pages_now=st.integers(0, 12),
    pages_reserved=st.integers(0, 12),
    is_idle=st.just(value=False),
)
CANDIDATE = st.builds(
    Candidate,
    num_tokens=st.integers(1, 60),
    num_cached=st.just(0),
    num_newly_protected=st.just(0),
    num_predicted=st.integers(0, 20),
)
OCCUPANTS = st.lists(
    st.builds(
        Occupant,
        order=st.integers(0, 10**6),
        priority=st.integers(0, 3),
        num_pages=st.integers(0, 6),
        num_reserved=st.integers(0, 3),
        is_protected=st.booleans(),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda occupant: occupant.order,
)


def _after(budget: Budget, leaving: list[Occupant], num_running: int) -> Budget:
    return Budget(
        page_size=budget.page_size,
        slots=budget.slots + len(leaving),
        chunk_tokens=budget.chunk_tokens,
        pages_now=budget.pages_now + sum(each.num_pages for each in leaving),
        pages_reserved=budget.pages_reserved - sum(each.num_reserved for each in leaving),
        is_idle=len(leaving) == num_running,
    )


@given(budget=BUDGET, candidate=CANDIDATE, lower=OCCUPANTS, num_more=st.integers(0, 1))
def test_preemption_takes_only_those_that_may_leave_and_nobody_in_vain(
    budget: Budget, candidate: Candidate, lower: list[Occupant], num_more: int
) -> None:
    num_running = len(lower) + num_more
    chosen = choose_victims(budget, candidate, lower, num_running=num_running)
    able = [each for each in lower if not each.is_protected]
    assert all(each in able for each in chosen)
    if not chosen:
        fits = isinstance(decide(budget, candidate), Admitted)
        with_all = _after(budget, able, num_running)
        assert fits or not isinstance(decide(with_all, candidate), Admitted)
        return
    assert not isinstance(decide(budget, candidate), Admitted)
    assert isinstance(decide(_after(budget, chosen, num_running), candidate), Admitted)
    for each in chosen:
        fewer = [other for other in chosen if other is not each]
        assert not isinstance(decide(_after(budget, fewer, num_running), candidate), Admitted)


@pytest.mark.parametrize(
    ("priorities", "num_overdue", "weakest"),
    [
        ((0, 0, 0), 0, 2),
        ((0, 0, 0), 2, 2),
        ((0, 0, 0), 3, 2),
        ((5, 1, 1, 5), 0, 2),
        ((1, 5, 5, 5), 0, 0),
        ((1, 5, 5, 5), 1, 3),
        ((1, 2, 5, 5), 2, 3),
    ],
)
def test_the_weakest_claim(priorities, num_overdue: int, weakest: int) -> None:
    claims = [
        claim(
            Standing(order=order, priority=priority, max_output=1), is_overdue=order < num_overdue
        )
        for order, priority in enumerate(priorities)
    ]
    assert claims.index(min(claims)) == weakest
