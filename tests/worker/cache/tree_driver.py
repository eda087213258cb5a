"""Drives two replicas of a tree and a dictionary model of it, checking every answer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.worker.cache.toy_components import EndState, Window

from mizzen_worker.cache.actions import Action
from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.eviction_order import RANKS
from mizzen_worker.cache.executor import ActionExecutor
from mizzen_worker.cache.node import NodeView
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.cache.results import Access, LockReceipt, Match
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import NodeId, Tick
from mizzen_worker.memory.allocator import PageAllocator

NAMESPACES = tuple(
    Namespace(model="m", adapter=adapter, salt=salt).digest()
    for adapter, salt in (("", ""), ("", "tenant"), ("tenant", ""))
)
Prefix = tuple[bytes, bytes]
"""Namespace and all tokens up to the end of one page: what the model calls a page by."""


@dataclass
class PageFacts:
    """What the model knows of one cached page."""

    page: int
    last_access: int
    num_uses: int
    priority: int


@dataclass
class Locked:
    """A lock outstanding, and the tokens of its path."""

    namespace: int
    tokens: bytes
    receipt: LockReceipt


class TreeDriver:
    """The system under test, twice, with allocators, and what it ought to hold."""

    def __init__(
        self,
        page_size: int,
        *,
        num_pages: int = 64,
        compare_every: int = 1,
        eviction: CacheEviction = CacheEviction.LRU,
        toy: EndState | Window | None = None,
    ) -> None:
        self.page_size = page_size
        self.eviction = eviction
        self.toy = toy
        components = (FullComponent(),) if toy is None else (FullComponent(), toy)
        self.core = UnifiedTreeCore(page_size=page_size, components=components, eviction=eviction)
        self.replica = UnifiedTreeCore(
            page_size=page_size, components=components, eviction=eviction
        )
        self.pools = {part.name: PageAllocator(num_pages=num_pages) for part in components}
        self.executor = ActionExecutor(self.pools)
        self.model: dict[Prefix, PageFacts] = {}
        self.units: dict[Prefix, int] = {}
        """Pages at which the toy component has a unit."""
        self.locked: list[Locked] = []
        self.hints: list[tuple[PageKey, Match]] = []
        self.tick = 0
        self.compare_every = compare_every
        """Every how many operations a lookup is compared node by node before and after."""

    def key(self, namespace: int, tokens: Sequence[int]) -> PageKey:
        return page_key(
            NAMESPACES[namespace], np.array(tokens, dtype=np.int32), page_size=self.page_size
        )

    def prefixes(self, key: PageKey) -> list[Prefix]:
        step = 4 * self.page_size
        return [(key.namespace, key.tokens[:end]) for end in range(step, len(key.tokens) + 1, step)]

    def cached_pages(self, key: PageKey) -> list[int]:
        present = (self.model.get(prefix) for prefix in self.prefixes(key))
        return [facts.page for facts in itertools.takewhile(lambda facts: facts, present) if facts]

    def expected_match(self, key: PageKey) -> list[int]:
        pages = self.cached_pages(key)
        if self.toy is None:
            return pages
        prefixes = self.prefixes(key)
        return pages[: self.toy.limit(lambda page: prefixes[page] in self.units, len(pages))]

    def match(self, key: PageKey) -> None:
        is_compared = self.tick % self.compare_every == 0
        before = [repr(view) for view in self.core.views()] if is_compared else []
        found = self.core.match(key)
        assert found == self.replica.match(key)
        if is_compared:
            assert before == [repr(view) for view in self.core.views()], "a lookup changed the tree"
        pages = self.core.pages(found.node, found.num_pages).tolist()
        assert pages == self.expected_match(key)
        for other, hint in self.hints:
            assert self.core.match(other, hint) == self.core.match(other), "a hint misled"
        self.hints = [*self.hints[-3:], (key, found)]

    def insert(self, key: PageKey, *, priority: int = 0, boundary: int = 0) -> None:
        """As a request does: its cached prefix is the tree's pages, the rest its own new ones."""
        prefixes = self.prefixes(key)
        reused = self.cached_pages(key) if self.tick % 3 else []
        values = self._take(prefixes, reused)
        if values is None:
            return
        access = self._access(priority)
        inserted = self.core.insert(key, values, access, boundary=boundary)
        assert repr(inserted) == repr(
            self.replica.insert(key, values, access, boundary=boundary)
        ), "replicas differ (T19)"
        expected = self._expect_merge(prefixes, values, 0)
        self._expect_use(prefixes, 0, access)
        self._execute(inserted.actions, expected)
        view = self._view(inserted.node)
        assert view.end_page == len(prefixes)
        is_new = (
            inserted.num_new_pages and view.start_page >= len(prefixes) - inserted.num_new_pages
        )
        assert not (is_new and view.start_page < boundary < view.end_page), (
            "an edge over a boundary"
        )
        self._expect_idempotent(key, access)

    def lock(self, namespace: int, key: PageKey, *, priority: int = 0) -> None:
        found = self.core.match(key)
        newly = self.core.num_unlocked_pages(found.node, found.num_pages)
        evictable = self.core.num_evictable(0)
        access = self._access(priority)
        receipt = self.core.lock(found.node, found.num_pages, access)
        assert receipt == self.replica.lock(found.node, found.num_pages, access)
        self._expect_use(self.prefixes(key)[: found.num_pages], 0, access)
        assert self.core.num_evictable(0) == evictable - newly
        if self.toy is None:
            assert self.core.match(key).num_pages == found.num_pages, "a split changed a match"
        tokens = key.tokens[: found.num_pages * self.page_size * 4]
        self.locked.append(Locked(namespace=namespace, tokens=tokens, receipt=receipt))

    def extend(self, which: int, tokens: Sequence[int], *, priority: int = 0) -> None:
        """As a checkpoint does: insert below a lock and move it down."""
        if not self.locked:
            return
        locked = self.locked[which % len(self.locked)]
        first = locked.receipt.num_pages
        whole = PageKey(NAMESPACES[locked.namespace], locked.tokens + self.key(0, tokens).tokens)
        prefixes = self.prefixes(whole)
        values = self._take(prefixes[first:], [])
        if values is None:
            return
        key = whole.from_page(first, page_size=self.page_size)
        access = self._access(priority)
        extended = self.core.extend(locked.receipt, key, values, access)
        assert repr(extended) == repr(self.replica.extend(locked.receipt, key, values, access))
        expected = self._expect_merge(prefixes, values, first)
        if len(prefixes) > first:
            self._expect_use(prefixes, first, access)
        self._execute(extended.actions, expected)
        assert extended.pages.tolist() == self.cached_pages(whole)[first:]
        locked.tokens, locked.receipt = whole.tokens, extended.receipt

    def unlock(self, which: int) -> None:
        if self.locked:
            locked = self.locked.pop(which % len(self.locked))
            self.core.unlock(locked.receipt)
            self.replica.unlock(locked.receipt)

    def evict(self, num_units: int) -> None:
        evictable = self.core.num_evictable(0)
        expected = self._expected_eviction(num_units)
        evicted = self.core.evict(0, num_units)
        assert evicted.num_units == min(num_units, evictable), "exactly as many as asked (T14)"
        assert repr(evicted) == repr(self.replica.evict(0, num_units))
        freed = [action for action in evicted.actions if action.component == "full"]
        assert [unit for action in freed for unit in action.units.tolist()] == expected, "T15"
        gone = set(expected)
        dead = {prefix for prefix, facts in self.model.items() if facts.page in gone}
        lost_units = [self.units.pop(prefix) for prefix in dead if prefix in self.units]
        for prefix in dead:
            del self.model[prefix]
        self._execute(evicted.actions, {"full": expected, "toy": lost_units})
        for locked in self.locked:
            key = PageKey(NAMESPACES[locked.namespace], locked.tokens)
            assert len(self.cached_pages(key)) == locked.receipt.num_pages, "a lock did not hold"

    def evict_toy(self, num_units: int) -> None:
        """Evict from the second component alone: the backbone stays as it is."""
        if self.toy is None:
            return
        backbone = self.core.num_evictable(0) + self.core.num_protected(0)
        views = [view for view in self.core.views() if view.node_id in self.core.candidates(1)]
        expected: list[int] = []
        for view in sorted(views, key=self._rank_of_view):
            if len(expected) < num_units and view.values[1] is not None:
                expected += view.values[1].tolist()
        evicted = self.core.evict(1, num_units)
        assert repr(evicted) == repr(self.replica.evict(1, num_units))
        freed = [unit for action in evicted.actions for unit in action.units.tolist()]
        assert freed == expected
        assert {action.component for action in evicted.actions} <= {self.toy.name}
        assert self.core.num_evictable(0) + self.core.num_protected(0) == backbone
        self._execute(evicted.actions, {"toy": expected})
        gone = set(expected)
        self.units = {prefix: unit for prefix, unit in self.units.items() if unit not in gone}

    def check(self) -> None:
        assert check(self.core) == []
        in_tree = [page for view in self.core.views() for page in _list(view.values[0])]
        assert sorted(in_tree) == sorted(facts.page for facts in self.model.values())
        if self.toy is not None:
            units = [unit for view in self.core.views() for unit in _list(view.values[1])]
            assert sorted(units) == sorted(self.units.values())
        for index, part in enumerate(self.core.components):
            pool = self.pools[part.name]
            num_held = self.core.num_evictable(index) + self.core.num_protected(index)
            assert pool.num_free + num_held == pool.num_pages
        assert not set(in_tree) & set(self.pools["full"].free_pages().tolist())
        assert self.executor.num_waiting == 0

    def finish(self) -> None:
        """After unlock-all and evict-all everything is free."""
        while self.locked:
            self.unlock(0)
        self.evict(self.core.num_evictable(0))
        self.check()
        assert all(pool.num_free == pool.num_pages for pool in self.pools.values())

    # Parts of the above.

    def _access(self, priority: int) -> Access:
        self.tick += 1
        return Access(tick=Tick(self.tick), priority=priority)

    def _take(self, prefixes: list[Prefix], reused: list[int]) -> list[np.ndarray | None] | None:
        """Take the pages and units of an insert; None where a pool is too small for it."""
        num_own = len(prefixes) - len(reused)
        if num_own > self.pools["full"].num_free:
            return None
        if self.toy is None:
            own = self.pools["full"].take(num_own)
            return [np.array([*reused, *own.tolist()], dtype=np.int32)]
        pool, wanted = self.pools[self.toy.name], self.toy.pages_with_units(len(prefixes))
        own = self.pools["full"].take(num_own)
        full = np.array([*reused, *own.tolist()], dtype=np.int32)
        has_units = wanted and self.tick % 4 and len(wanted) <= pool.num_free
        return [full, pool.take(len(wanted)) if has_units else None]

    def _expect_merge(
        self, prefixes: list[Prefix], values: list[np.ndarray | None], first: int
    ) -> dict[str, list[int]]:
        """Enter what is new into the model; say which units are nobody's."""
        freed: dict[str, list[int]] = {"full": [], "toy": []}
        for prefix, page in zip(prefixes[first:], _list(values[0]), strict=True):
            known = self.model.get(prefix)
            if known is None:
                self.model[prefix] = PageFacts(page, 0, 0, -(10**9))
            elif known.page != page:
                freed["full"].append(page)
        if self.toy is not None and values[1] is not None:
            wanted = self.toy.pages_with_units(len(prefixes) - first)
            for page, unit in zip(wanted, _list(values[1]), strict=True):
                if self.units.setdefault(prefixes[first + page], unit) != unit:
                    freed["toy"].append(unit)
        return freed

    def _expect_use(self, prefixes: list[Prefix], first: int, access: Access) -> None:
        for number, prefix in enumerate(prefixes):
            facts = self.model[prefix]
            facts.last_access = access.tick
            if number >= first:
                facts.num_uses += 1
                facts.priority = max(facts.priority, access.priority)

    def _expect_idempotent(self, key: PageKey, access: Access) -> None:
        """T10: inserting what is there changes nothing but that it is one more use."""
        prefixes = self.prefixes(key)
        pages = np.array([self.model[prefix].page for prefix in prefixes], dtype=np.int32)
        values = [pages] if self.toy is None else [pages, None]
        epoch = self.core.epoch
        repeated = self.core.insert(key, values, access)
        self.replica.insert(key, values, access)
        self._expect_use(prefixes, 0, access)
        assert (repeated.num_new_pages, repeated.actions, self.core.epoch) == (0, (), epoch)

    def _expected_eviction(self, num_units: int) -> list[int]:
        """Work out from the model alone which pages leave, in which order."""
        views = {view.node_id: view for view in self.core.views()}
        num_children = {node_id: len(view.child_ids) for node_id, view in views.items()}
        by_page = {facts.page: facts for facts in self.model.values()}
        expected: list[int] = []
        while len(expected) < num_units:
            leaves = [
                (self._rank_of_page(by_page, view), node_id)
                for node_id, view in views.items()
                if node_id and not num_children[node_id] and not any(view.locks)
            ]
            if not leaves:
                break
            _, node_id = min(leaves)
            leaf = views.pop(node_id)
            num_children[leaf.parent_id or NodeId(0)] -= 1
            expected += _list(leaf.values[0])[-(num_units - len(expected)) :]
        return expected

    def _rank_of_page(self, by_page: dict[int, PageFacts], view: NodeView) -> tuple[int, ...]:
        facts = [by_page[page] for page in _list(view.values[0])]
        assert all(fact.num_uses == facts[0].num_uses for fact in facts)
        return {
            CacheEviction.LRU: (facts[0].last_access,),
            CacheEviction.LFU: (facts[0].num_uses, facts[0].last_access),
            CacheEviction.SLRU: (int(facts[0].num_uses > 1), facts[0].last_access),
            CacheEviction.PRIORITY: (facts[0].priority, facts[0].last_access),
        }[self.eviction]

    def _rank_of_view(self, view: NodeView) -> tuple[tuple[int, ...], int]:
        return (RANKS[self.eviction](view), view.node_id)  # type: ignore[arg-type]

    def _view(self, node_id: NodeId) -> NodeView:
        return next(view for view in self.core.views() if view.node_id == node_id)

    def _execute(self, actions: tuple[Action, ...], expected: dict[str, list[int]]) -> None:
        for name in ("full", "toy"):
            freed = [
                unit
                for action in actions
                if (action.component == "full") == (name == "full")
                for unit in action.units.tolist()
            ]
            assert sorted(freed) == sorted(expected.get(name, [])), name
        self.executor.run(actions)


def _list(value: np.ndarray | None) -> list[int]:
    return [] if value is None else value.tolist()
