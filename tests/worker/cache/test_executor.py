"""T20: every action is done exactly once, whatever fails in between."""

import numpy as np
import pytest

from mizzen_worker.cache.actions import Free
from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.executor import ActionExecutor
from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.memory.allocator import PageAllocator

NAMESPACE = Namespace(model="m").digest()


def _key(*tokens: int) -> PageKey:
    return page_key(NAMESPACE, np.array(tokens, dtype=np.int32), page_size=1)


def _free(component: str, *units: int) -> Free:
    return Free(component=component, units=np.array(units, dtype=np.int32))


class _Pool:
    """Notes what comes back; refuses one unit, as a pool does that knows better."""

    def __init__(self, refused: int = -1) -> None:
        self.returned: list[int] = []
        self.refused = refused

    def give_back(self, units: Int32Array, /) -> None:
        if self.refused in units:
            raise InvariantError([f"{self.refused} is not out"])
        self.returned += units.tolist()


def test_actions_go_to_the_pool_of_their_component_in_order() -> None:
    pools = {"full": _Pool(), "window": _Pool()}
    ActionExecutor(pools).run([_free("full", 2, 1), _free("window", 1), _free("full", 3)])
    assert pools["full"].returned == [2, 1, 3]
    assert pools["window"].returned == [1]


def test_what_a_failure_left_behind_is_done_later_and_nothing_twice() -> None:
    pool = _Pool(refused=2)
    executor = ActionExecutor({"full": pool})
    with pytest.raises(InvariantError):
        executor.run([_free("full", 1), _free("full", 2), _free("full", 3)])
    assert executor.num_waiting == 1
    pool.refused = -1
    executor.run([_free("full", 4)])
    assert pool.returned == [1, 3, 4]
    assert executor.num_waiting == 0


def test_pages_that_are_nobodys_come_back_also_when_the_controller_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = PageAllocator(num_pages=8)
    cache = UnifiedRadixCache(allocator=allocator, page_size=1)
    first, second = (cache.open(cache.match(_key())) for _ in range(2))
    cache.grow([(first, 2), (second, 3)])
    cache.checkpoint(first, _key(1, 2))
    twice = second.pages(0, 2).tolist()

    def adopt(self: KvLease, pages: Int32Array, receipt: object) -> None:
        raise RuntimeError("in between")

    with monkeypatch.context() as patch:
        patch.setattr(KvLease, "adopt", adopt)
        with pytest.raises(RuntimeError, match="in between"):
            cache.checkpoint(second, _key(1, 2))
    assert sorted(set(allocator.free_pages().tolist()) & set(twice)) == sorted(twice)
    assert allocator.num_free == 8 - 2 - 1


def test_refused_work_changes_nothing() -> None:
    """M5: more than there is, or for a lease that is closed, and everything stays as it was."""
    cache = UnifiedRadixCache(allocator=PageAllocator(num_pages=4), page_size=1)
    kept, closed = (cache.open(cache.match(_key())) for _ in range(2))
    cache.grow([(kept, 2)])
    cache.checkpoint(kept, _key(1, 2))
    other = cache.open(cache.match(_key()))
    cache.grow([(other, 1)])
    cache.close(other, _key(7))
    cache.close(closed, None)
    epoch = cache.epoch
    with pytest.raises(InvariantError, match="3 pages wanted, 2 are available"):
        cache.grow([(kept, 3)])
    with pytest.raises(InvariantError, match="closed"):
        cache.grow([(kept, 2), (closed, 0)])
    assert cache.epoch == epoch
    assert cache.violations() == []
    cache.grow([(kept, 2)])
    assert cache.violations() == []
