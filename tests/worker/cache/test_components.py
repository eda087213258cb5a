"""A second kind of state needs no change of the tree core: what the random walks rarely show.

The walks themselves are in ``test_tree_core_properties.py``, with both toys.
"""

from typing import TYPE_CHECKING

from tests.worker.cache.toy_components import EndState, Window
from tests.worker.cache.tree_driver import TreeDriver

from mizzen_worker.cache.check import check
from mizzen_worker.cache.results import Access
from mizzen_worker.contracts.ids import Tick

if TYPE_CHECKING:
    from mizzen_worker.cache.results import Match


class _World(TreeDriver):
    """A tree of single-token pages with a toy in it."""

    def __init__(self, toy: EndState | Window) -> None:
        super().__init__(1, toy=toy)

    def put(self, tokens: list[int], *, has_units: bool = True) -> None:
        assert self.toy is not None
        self.tick += 1
        num_units = len(self.toy.pages_with_units(len(tokens))) if has_units else 0
        units = self.pools[self.toy.name].take(num_units) if has_units else None
        values = [self.pools["full"].take(len(tokens)), units]
        access = Access(tick=Tick(self.tick))
        self.executor.run(self.core.insert(self.key(0, tokens), values, access).actions)
        assert check(self.core) == []

    def find(self, tokens: list[int]) -> "Match":
        return self.core.match(self.key(0, tokens))


def test_a_match_ends_where_the_most_demanding_component_can_go_on() -> None:
    world = _World(EndState())
    world.put([1, 2, 3, 4])
    assert world.find([1, 2, 3, 5]).num_pages == 0
    world.put([1, 2])
    assert world.find([1, 2, 3, 5]).num_pages == 2
    world.put([1, 2, 3, 5], has_units=False)
    assert world.find([1, 2, 3, 5]).num_pages == 2, "the split left no state on the upper half"


def test_evicting_a_component_leaves_the_backbone_and_a_later_insert_brings_it_back() -> None:
    world = _World(Window())
    world.put([1, 2, 3, 4, 5])
    world.executor.run(world.core.evict(1, 1).actions)
    assert world.core.num_evictable(0) == 5
    assert world.core.num_evictable(1) == 0
    assert world.find([1, 2, 3, 4, 5]).num_pages == 0, "a tombstone ends the usable part"
    world.put([1, 2, 3, 4, 5])
    assert world.find([1, 2, 3, 4, 5]).num_pages == 5
    assert world.pools["full"].num_free == 64 - 5, "the second insert's pages were given back"


def test_a_lock_covers_what_each_component_needs() -> None:
    world = _World(Window())
    world.put([1])
    world.put([1, 2, 3])
    world.put([1, 2, 3, 4, 5, 6])
    found = world.find([1, 2, 3, 4, 5, 6])
    receipt = world.core.lock(found.node, 6, Access(tick=Tick(9)))
    assert receipt.tops == (0, 3), "the window is three pages"
    assert world.core.num_protected(0) == 6
    assert world.core.num_protected(1) == 3
    world.executor.run(world.core.evict(1, 99).actions)
    assert world.core.num_protected(1) == 3
    assert world.find([1, 2, 3, 4, 5, 6]).num_pages == 6, "what the lock covers is still usable"
    world.core.unlock(receipt)
    assert check(world.core) == []


def test_a_lock_that_moves_down_lets_go_of_what_left_the_window() -> None:
    world = _World(Window())
    world.put([1, 2, 3])
    found = world.find([1, 2, 3])
    receipt = world.core.lock(found.node, 3, Access(tick=Tick(9)))
    key = world.key(0, [1, 2, 3, 4, 5, 6]).from_page(3, page_size=1)
    values = [world.pools["full"].take(3), world.pools["window"].take(3)]
    extended = world.core.extend(receipt, key, values, Access(tick=Tick(10)))
    assert extended.receipt.tops == (0, 3)
    assert world.core.num_protected(0) == 6
    assert (world.core.num_protected(1), world.core.num_evictable(1)) == (3, 3)
    world.core.unlock(extended.receipt)
    assert check(world.core) == []


def test_actions_name_the_pool_and_are_done_there() -> None:
    world = _World(EndState())
    world.put([1, 2])
    evicted = world.core.evict(0, 2)
    assert {action.component: len(action.units) for action in evicted.actions} == {
        "full": 2,
        "end_state": 1,
    }
    world.executor.run(evicted.actions)
    assert all(pool.num_free == pool.num_pages for pool in world.pools.values())


def test_trimming_a_leaf_takes_the_state_at_its_end_along() -> None:
    world = _World(EndState())
    world.put([1, 2, 3])
    world.executor.run(world.core.evict(0, 1).actions)
    assert world.pools["end_state"].num_free == 64
    assert world.core.num_evictable(0) == 2
    assert world.find([1, 2, 3]).num_pages == 0
