"""Which worker: least loaded, same prefix same place, equal identity where tokens exist."""

from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.tokenizer.worker_choice import WorkerView, choose_worker, prefix_key


def _view(
    name: str, num_live: int = 0, *, is_accepting: bool = True, identity: str = "r"
) -> WorkerView:
    return WorkerView(
        address=name,
        num_live=num_live,
        max_running=10,
        is_accepting=is_accepting,
        resume_identity=identity,
    )


def test_nobody_draining_excluded_or_different_is_chosen() -> None:
    key = prefix_key([TokenId(1)])
    assert choose_worker([], key=key, resume_identity=None) is None
    draining = _view("a", is_accepting=False)
    assert choose_worker([draining], key=key, resume_identity=None) is None
    assert choose_worker([_view("a")], key=key, resume_identity=None, excluded=["a"]) is None
    assert choose_worker([_view("a", identity="x")], key=key, resume_identity="r") is None
    assert choose_worker([_view("a", identity="x")], key=key, resume_identity=None) == "a"


def test_equal_beginnings_go_to_one_worker_and_different_ones_spread() -> None:
    workers = [_view(name) for name in "abcd"]
    long = [TokenId(i) for i in range(500)]
    chosen = {
        choose_worker(workers, key=prefix_key([*long[:200], TokenId(i)]), resume_identity=None)
        for i in range(50)
    }
    assert len(chosen) == 1
    spread = {
        choose_worker(workers, key=prefix_key([TokenId(i)]), resume_identity=None)
        for i in range(200)
    }
    assert spread == set("abcd")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 1000))
def test_affinity_never_costs_more_than_its_slack(loads: list[int], seed: int) -> None:
    workers = [_view(str(place), load) for place, load in enumerate(loads)]
    chosen = choose_worker(workers, key=prefix_key([TokenId(seed)]), resume_identity=None)
    assert chosen is not None
    assert loads[int(chosen)] - min(loads) <= 2.5


def test_a_worker_that_leaves_moves_only_its_own_prefixes() -> None:
    workers = [_view(name) for name in "abcd"]
    for i in range(100):
        key = prefix_key([TokenId(i)])
        before = choose_worker(workers, key=key, resume_identity=None)
        after = choose_worker(workers[:3], key=key, resume_identity=None)
        assert before in {after, "d"}
