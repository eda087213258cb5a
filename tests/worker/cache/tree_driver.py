"""Drives two replicas of a tree and a dictionary model of it, checking every answer."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from mizzen_worker.cache.actions import Free
from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.ids import Tick
from mizzen_worker.memory.allocator import PageAllocator

if TYPE_CHECKING:
    from mizzen_worker.cache.results import LockReceipt

NAMESPACES = tuple(
    Namespace(model=model, salt=salt).digest() for model, salt in (("m", ""), ("m", "tenant"))
)
Prefix = tuple[bytes, bytes]
"""Namespace and all tokens up to the end of one page: what the model calls a page by."""


class TreeDriver:
    """The system under test, twice, with an allocator, and what it ought to hold."""

    def __init__(self, page_size: int, num_pages: int = 64, compare_every: int = 1) -> None:
        self.page_size = page_size
        self.core = UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))
        self.replica = UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))
        self.allocator = PageAllocator(num_pages=num_pages)
        self.model: dict[Prefix, int] = {}
        self.locked: list[tuple[PageKey, int, LockReceipt]] = []
        self.tick = 0
        self.compare_every = compare_every
        """Every how many operations a lookup is compared node by node before and after."""

    def key(self, namespace: int, tokens: list[int]) -> PageKey:
        return page_key(
            NAMESPACES[namespace], np.array(tokens, dtype=np.int32), page_size=self.page_size
        )

    def prefixes(self, key: PageKey) -> list[Prefix]:
        step = 4 * self.page_size
        return [(key.namespace, key.tokens[:end]) for end in range(step, len(key.tokens) + 1, step)]

    def expected_match(self, key: PageKey) -> list[int]:
        present = (self.model.get(prefix) for prefix in self.prefixes(key))
        return list(itertools.takewhile(lambda page: page is not None, present))

    def match(self, key: PageKey) -> None:
        is_compared = self.tick % self.compare_every == 0
        before = [repr(view) for view in self.core.views()] if is_compared else []
        found = self.core.match(key)
        assert found == self.replica.match(key)
        if is_compared:
            assert before == [repr(view) for view in self.core.views()], "a lookup changed the tree"
        pages = self.core.pages(found.node, found.num_pages).tolist()
        assert pages == self.expected_match(key)

    def insert(self, key: PageKey) -> None:
        """As a request does: its cached prefix is the tree's pages, the rest its own new ones."""
        prefixes = self.prefixes(key)
        num_reused = min(self.tick % 3, 1) * len(self.expected_match(key))
        if len(prefixes) - num_reused > self.allocator.num_free:
            return
        reused = self.expected_match(key)[:num_reused]
        own = self.allocator.take(len(prefixes) - num_reused)
        incoming = np.array([*reused, *own.tolist()], dtype=np.int32)
        self.tick += 1
        inserted = self.core.insert(key, (incoming,), Tick(self.tick))
        assert inserted == _like(
            inserted, self.replica.insert(key, (incoming,), Tick(self.tick))
        ), "replicas differ"
        expected_freed = []
        for prefix, page in zip(prefixes, incoming.tolist(), strict=True):
            if self.model.setdefault(prefix, page) != page:
                expected_freed.append(page)
        assert sorted(self._execute(inserted.actions)) == sorted(expected_freed)
        assert self.core.match(key).num_pages == len(prefixes)
        again = self.core.pages(inserted.node, len(prefixes))
        repeated = self.core.insert(key, (again,), Tick(self.tick))
        self.replica.insert(key, (again,), Tick(self.tick))
        assert (repeated.num_new_pages, repeated.actions) == (0, ()), "insert is not idempotent"

    def lock(self, key: PageKey) -> None:
        found = self.core.match(key)
        newly = self.core.num_unlocked_pages(found.node, found.num_pages)
        evictable = self.core.num_evictable(0)
        self.tick += 1
        receipt = self.core.lock(found.node, found.num_pages, Tick(self.tick))
        assert receipt == self.replica.lock(found.node, found.num_pages, Tick(self.tick))
        assert self.core.num_evictable(0) == evictable - newly
        assert self.core.match(key).num_pages == found.num_pages, "a split changed a match"
        self.locked.append((key, found.num_pages, receipt))

    def unlock(self, which: int) -> None:
        if self.locked:
            _, _, receipt = self.locked.pop(which % len(self.locked))
            self.core.unlock(receipt)
            self.replica.unlock(receipt)

    def evict(self, num_units: int) -> None:
        evictable = self.core.num_evictable(0)
        leaves = [view for view in self.core.views() if view.node_id in self.core.candidates(0)]
        evicted = self.core.evict(0, num_units)
        assert evicted.num_units >= min(num_units, evictable)
        assert evicted == _like(evicted, self.replica.evict(0, num_units))
        if evicted.actions:
            first = min(leaves, key=lambda view: (view.last_access, view.node_id))
            assert evicted.actions[0].units.tolist() == first.values[0].tolist()
        freed = set(self._execute(evicted.actions))
        assert len(freed) == evicted.num_units
        self.model = {prefix: page for prefix, page in self.model.items() if page not in freed}
        for key, num_pages, _ in self.locked:
            assert len(self.expected_match(key)) >= num_pages, "a locked page was evicted"

    def check(self) -> None:
        assert check(self.core) == []
        in_tree = [
            page
            for view in self.core.views()
            if view.values[0] is not None
            for page in view.values[0].tolist()
        ]
        assert sorted(in_tree) == sorted(self.model.values())
        assert self.allocator.num_free + len(in_tree) == self.allocator.num_pages
        assert not set(in_tree) & set(self.allocator.free_pages().tolist())

    def finish(self) -> None:
        """After unlock-all and evict-all everything is free."""
        while self.locked:
            self.unlock(0)
        self.evict(self.core.num_evictable(0))
        self.check()
        assert self.allocator.num_free == self.allocator.num_pages

    def _execute(self, actions: tuple[Free, ...]) -> list[int]:
        units = [unit for action in actions for unit in action.units.tolist()]
        self.allocator.give_back(np.array(units, dtype=np.int32))
        return units


def _like(left: object, right: object) -> object:
    """Return ``left`` when ``right`` prints the same: arrays have no plain equality."""
    return left if repr(left) == repr(right) else right
