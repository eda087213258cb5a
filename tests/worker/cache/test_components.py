"""A second kind of state proves that the tree core needs no change for one.

``EndState`` is like a recurrent model's snapshot: one unit, true exactly at the end of a node.
"""

import random
from typing import TYPE_CHECKING

import numpy as np

from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.base import Merged, Span
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.page_key import Namespace, page_key
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.ids import Tick
from mizzen_worker.memory.allocator import PageAllocator

if TYPE_CHECKING:
    from mizzen_worker.cache.results import LockReceipt

_NONE = np.empty(0, dtype=np.int32)
NAMESPACE = Namespace(model="m").digest()


class _AtEnd:
    def usable(self, value: np.ndarray | None, num_pages: int, num_matched: int) -> bool:
        return value is not None and num_matched == num_pages


class _NodeOnly:
    def __init__(self) -> None:
        self.is_first = True

    def covers(self, num_pages: int) -> bool:
        was_first, self.is_first = self.is_first, False
        return was_first


class EndState:
    name = "end_state"

    def start_match(self) -> _AtEnd:
        return _AtEnd()

    def start_lock(self) -> _NodeOnly:
        return _NodeOnly()

    def split(self, value: np.ndarray, at_page: int) -> tuple[None, np.ndarray]:
        return None, value

    def part(self, incoming: np.ndarray, span: Span) -> np.ndarray | None:
        return incoming if span.end == span.total else None

    def merge(self, existing: np.ndarray | None, incoming: np.ndarray) -> Merged:
        if existing is None:
            return Merged(kept=incoming.copy(), freed=_NONE)
        return Merged(kept=existing, freed=incoming[incoming != existing])


class _World:
    """Tree with two components, a pool each, and the states that ought to exist."""

    def __init__(self) -> None:
        self.core = UnifiedTreeCore(page_size=1, components=(FullComponent(), EndState()))
        self.pools = {
            "full": PageAllocator(num_pages=200),
            "end_state": PageAllocator(num_pages=40),
        }
        self.locked: list[LockReceipt] = []
        self.tick = 0

    def run(self, actions: tuple) -> None:
        for action in actions:
            self.pools[action.component].give_back(action.units)

    def insert(self, tokens: list[int], *, has_state: bool) -> None:
        self.tick += 1
        if self.pools["full"].num_free < len(tokens) or self.pools["end_state"].num_free < 1:
            return
        pages = self.pools["full"].take(len(tokens))
        state = self.pools["end_state"].take(1) if has_state else None
        key = page_key(NAMESPACE, np.array(tokens, dtype=np.int32), page_size=1)
        self.run(self.core.insert(key, (pages, state), Tick(self.tick)).actions)

    def check(self) -> None:
        assert check(self.core) == []
        for index, component in enumerate(self.core.components):
            pool = self.pools[component.name]
            in_tree = self.core.num_evictable(index) + self.core.num_protected(index)
            assert in_tree + pool.num_free == pool.num_pages


def _operate(world: _World, dice: random.Random) -> None:
    tokens = [dice.randint(0, 1) for _ in range(dice.randint(0, 9))]
    choice = dice.randrange(5)
    if choice == 0:
        world.insert(tokens, has_state=dice.random() < 0.7)
    elif choice == 1:
        key = page_key(NAMESPACE, np.array(tokens, dtype=np.int32), page_size=1)
        found = world.core.match(key)
        if found.num_pages:
            assert world.core.value(1, found.node) is not None, "matched where no state is"
        world.tick += 1
        world.locked.append(world.core.lock(found.node, found.num_pages, Tick(world.tick)))
    elif choice == 2 and world.locked:
        world.core.unlock(world.locked.pop(dice.randrange(len(world.locked))))
    elif choice == 3:
        world.run(world.core.evict(0, dice.randint(0, 6)).actions)
    elif choice == 4:
        evicted = world.core.evict(1, 1)
        assert all(action.component == "end_state" for action in evicted.actions)
        world.run(evicted.actions)


def test_a_second_component_lives_in_the_same_tree_core() -> None:
    world, dice = _World(), random.Random(3)
    for _ in range(3_000):
        _operate(world, dice)
        world.check()
    for receipt in world.locked:
        world.core.unlock(receipt)
    world.run(world.core.evict(0, world.core.num_evictable(0)).actions)
    assert all(pool.num_free == pool.num_pages for pool in world.pools.values())


def test_a_match_ends_where_the_most_demanding_component_can_go_on() -> None:
    world = _World()
    world.insert([1, 2, 3, 4], has_state=True)
    key = page_key(NAMESPACE, np.array([1, 2, 3, 5], dtype=np.int32), page_size=1)
    assert world.core.match(key).num_pages == 0
    world.insert([1, 2], has_state=True)
    assert world.core.match(key).num_pages == 2
    world.insert([1, 2, 3, 5], has_state=False)
    assert world.core.match(key).num_pages == 2, "the split left no state on the upper half"


def test_evicting_a_state_leaves_the_backbone() -> None:
    world = _World()
    world.insert([1, 2], has_state=True)
    world.run(world.core.evict(1, 1).actions)
    world.check()
    assert world.core.num_evictable(0) == 2
    assert world.pools["end_state"].num_free == 40
