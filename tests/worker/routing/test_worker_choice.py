"""Which worker: least work first, same beginning same place, equal identity where tokens exist."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.routing.prefix_memory import PrefixMemory, PromptPrefix, prompt_prefix
from mizzen_worker.routing.worker_choice import IMBALANCE, WorkerView, choose_worker

MAX_RUNNING = 16


def _view(
    name: str,
    num_live: int = 0,
    *,
    queued_tokens: int = 0,
    is_accepting: bool = True,
    identity: str = "r",
) -> WorkerView:
    return WorkerView(
        address=name,
        num_live=num_live,
        queued_tokens=queued_tokens,
        max_running=MAX_RUNNING,
        is_accepting=is_accepting,
        resume_identity=identity,
    )


def _prefix(*ids: int, num: int = 0) -> PromptPrefix:
    return prompt_prefix([TokenId(token) for token in (*ids, *range(num))])


def _choose(workers, prefix=None, memory=None, **restrictions):
    return choose_worker(
        workers,
        prefix=prefix or _prefix(1),
        memory=memory or PrefixMemory(),
        **restrictions,
    )


def test_nobody_draining_excluded_or_different_is_chosen() -> None:
    assert _choose([]) is None
    assert _choose([_view("a", is_accepting=False)]) is None
    assert _choose([_view("a")], excluded=["a"]) is None
    assert _choose([_view("a", identity="x")], resume_identity="r") is None
    assert _choose([_view("a", identity="x")]) == "a"
    workers = [_view("a", 9), _view("b", identity="x"), _view("c", is_accepting=False)]
    assert _choose(workers, resume_identity="r") == "a"


def test_equal_beginnings_go_to_one_worker_and_different_ones_spread() -> None:
    """Also where nothing is remembered: as when several processes hand requests out."""
    workers = [_view(name) for name in "abcd"]
    chosen = {_choose(workers, _prefix(*range(200), place)) for place in range(50)}
    assert len(chosen) == 1
    assert {_choose(workers, _prefix(place)) for place in range(200)} == set("abcd")


def test_a_worker_that_leaves_moves_only_its_own_prefixes() -> None:
    workers = [_view(name) for name in "abcd"]
    for place in range(100):
        before = _choose(workers, _prefix(place))
        assert before in {_choose(workers[:3], _prefix(place)), "d"}


def test_least_work_is_chosen() -> None:
    assert _choose([_view("a", 4), _view("b", 1)]) == "b"
    assert _choose([_view("a", queued_tokens=5000), _view("b", 4)]) == "b"


def test_a_cached_prefix_outweighs_load_until_the_load_costs_more() -> None:
    memory = PrefixMemory()
    prefix = _prefix(num=640)
    memory.note_sent("a", prefix, max_tokens=100_000)
    assert _choose([_view("a", 3), _view("b")], prefix, memory) == "a"
    assert _choose([_view("a", 7), _view("b")], prefix, memory) == "b"
    assert _choose([_view("a", queued_tokens=2000), _view("b")], prefix, memory) == "b"


def test_imbalance_is_bounded_however_much_is_cached() -> None:
    memory = PrefixMemory()
    prefix = _prefix(num=64_000)
    memory.note_sent("a", prefix, max_tokens=1_000_000)
    most = int(IMBALANCE * MAX_RUNNING)
    assert _choose([_view("a", most), _view("b")], prefix, memory) == "a"
    assert _choose([_view("a", most + 1), _view("b")], prefix, memory) == "b"


def test_where_requests_wait_nobody_is_sent_while_there_is_a_place() -> None:
    memory = PrefixMemory()
    prefix = _prefix(num=64_000)
    memory.note_sent("a", prefix, max_tokens=1_000_000)
    full, nearly = _view("a", MAX_RUNNING), _view("b", MAX_RUNNING - 1)
    assert _choose([full, nearly], prefix, memory) == "b"
    assert _choose([full, _view("b", MAX_RUNNING)], prefix, memory) == "a"


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9000)), min_size=1, max_size=6),
    st.integers(0, 1000),
    st.randoms(use_true_random=False),
)
def test_the_choice_depends_on_its_inputs_only_not_on_their_order(loads, seed, shuffle) -> None:
    workers = [
        _view(str(place), live, queued_tokens=queued) for place, (live, queued) in enumerate(loads)
    ]
    chosen = _choose(workers, _prefix(seed))
    shuffle.shuffle(workers)
    assert _choose(workers, _prefix(seed)) == chosen


class _Fleet:
    """Workers that run what they get; each round the oldest request of each ends."""

    def __init__(self, names: str) -> None:
        self.memory = PrefixMemory()
        self.running = dict.fromkeys(names, 0)

    def send(self, prefix: PromptPrefix) -> str:
        views = [_view(name, live) for name, live in self.running.items()]
        chosen = choose_worker(views, prefix=prefix, memory=self.memory)
        assert chosen is not None
        self.memory.note_sent(chosen, prefix, max_tokens=10_000)
        self.running[chosen] += 1
        return chosen

    def end_one_each(self) -> None:
        self.running = {name: max(0, live - 1) for name, live in self.running.items()}


def test_conversations_stay_where_their_prefix_is() -> None:
    fleet = _Fleet("abcd")
    homes: dict[int, set[str]] = {talk: set() for talk in range(8)}
    for turn, talk in itertools.product(range(6), range(8)):
        homes[talk].add(fleet.send(_prefix(talk, num=200 + 150 * turn)))
        if talk % 4 == 3:
            fleet.end_one_each()
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_one_popular_prefix_spreads_when_its_worker_is_busy() -> None:
    fleet = _Fleet("abcd")
    prefix = _prefix(num=2000)
    chosen = [fleet.send(prefix) for _ in range(4 * MAX_RUNNING)]
    assert len(set(chosen[: MAX_RUNNING // 2])) == 1
    assert fleet.running == dict.fromkeys("abcd", MAX_RUNNING)


def test_strangers_are_spread_evenly() -> None:
    fleet = _Fleet("abc")
    draw = random.Random(1)
    for _ in range(30):
        fleet.send(_prefix(*(draw.randrange(1000) for _ in range(300))))
    assert max(fleet.running.values()) - min(fleet.running.values()) <= 2


def test_siblings_of_one_prompt_go_to_one_worker() -> None:
    fleet = _Fleet("abcd")
    assert len({fleet.send(_prefix(num=600)) for _ in range(4)}) == 1


@pytest.mark.parametrize("num", [0, 1, 63, 64, 65, 640])
def test_a_prompt_is_guessed_to_be_cached_by_whole_blocks_but_for_its_last_token(num: int) -> None:
    memory = PrefixMemory()
    prefix = _prefix(num=num)
    assert memory.num_cached("a", prefix) == 0
    memory.note_sent("a", prefix, max_tokens=10_000)
    assert memory.num_cached("a", prefix) == max(0, min(num // 64 * 64, num - 1))
    assert memory.num_cached("b", prefix) == 0
    memory.forget("a")
    assert memory.num_cached("a", prefix) == 0


def test_a_chain_parts_where_prompts_or_salts_differ() -> None:
    memory = PrefixMemory()
    memory.note_sent("a", _prefix(num=256), max_tokens=10_000)
    assert memory.num_cached("a", _prefix(*range(130), 999, *range(200))) == 128
    ids = [TokenId(token) for token in range(256)]
    assert memory.num_cached("a", prompt_prefix(ids, salt="x")) == 0
    assert prompt_prefix(ids, salt="x").key != prompt_prefix(ids).key


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 700)), max_size=30))
def test_memory_is_bounded_and_forgets_ends_before_beginnings(sent) -> None:
    memory = PrefixMemory()
    others = [_prefix(other, num=700) for other in range(6)]
    for talk, num in sent:
        prefix = _prefix(talk, num=num)
        memory.note_sent("a", prefix, max_tokens=640)
        known = memory._blocks["a"]
        assert len(known) <= 10
        assert memory.num_cached("a", prefix) == min(64 * min(len(prefix.blocks), 10), num)
        for other in others:
            held = [name in known for name in other.blocks]
            assert held == sorted(held, reverse=True)
