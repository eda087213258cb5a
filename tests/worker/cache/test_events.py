"""The numbered record of pages: complete, in order, and bounded."""

import random

import numpy as np
import pytest
from tests.scale import count
from tests.worker.cache.event_mirror import EventMirror

from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.events import EventLog
from mizzen_worker.cache.page_key import Namespace, PageKey, hash_pages, page_key
from mizzen_worker.cache.results import Access
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.cache_events import PagesRemoved, PagesStored
from mizzen_worker.contracts.ids import Tick

NAMESPACES = [Namespace(model="m", salt=salt).digest() for salt in ("", "tenant")]


def _key(tokens: list[int], page_size: int, namespace: int = 0) -> PageKey:
    return page_key(NAMESPACES[namespace], np.array(tokens, dtype=np.int32), page_size=page_size)


def _all_names(core: UnifiedTreeCore) -> set[bytes]:
    """Recompute from keys alone what the tree says that it holds."""
    views = {view.node_id: view for view in core.views()}
    names: dict[int, tuple[bytes, ...]] = {0: ()}
    for view in sorted(views.values(), key=lambda view: view.start_page):
        if view.parent_id is not None:
            above = names[view.parent_id]
            previous = above[-1] if above else view.child_key[:16]
            names[view.node_id] = above + hash_pages(previous, view.edge, page_size=core.page_size)
    return {name for chain in names.values() for name in chain}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_who_applies_every_event_holds_exactly_what_is_cached(page_size: int) -> None:
    log = EventLog(capacity=10**6)
    core = UnifiedTreeCore(page_size=page_size, components=(FullComponent(),), event_log=log)
    mirror, dice = EventMirror(), random.Random(page_size)
    for tick in range(1, count(check=300, full=1_500)):
        tokens = [dice.randint(0, 1) for _ in range(dice.randint(0, 10) * page_size)]
        key = _key(tokens, page_size, dice.randint(0, 1))
        access = Access(tick=Tick(tick))
        if dice.random() < 0.3:
            core.evict(0, dice.randint(1, 12))
        elif dice.random() < 0.3:
            found = core.match(key)
            core.unlock(core.lock(found.node, found.num_pages, access))
        else:
            pages = np.arange(10, dtype=np.int32)[: len(tokens) // page_size] + 10 * tick
            core.insert(key, (pages,), access, boundary=dice.randint(0, 5))
        events = log.since(mirror.next_sequence)
        assert events is not None
        mirror.apply(events)
        names = core.hashes()
        assert mirror.hashes == set(names) == _all_names(core)
        assert len(names) == len(set(names))
        assert check(core) == []
    assert mirror.namespaces <= set(NAMESPACES)


def test_a_page_follows_the_one_before_it_in_a_snapshot() -> None:
    log = EventLog(capacity=8)
    core = UnifiedTreeCore(page_size=1, components=(FullComponent(),), event_log=log)
    for tick, tokens in enumerate(([1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 8])):
        pages = np.arange(len(tokens), dtype=np.int32)
        core.insert(_key(tokens, 1), (pages,), Access(tick=Tick(tick)))
    names = core.hashes()
    for tokens in ([1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 8]):
        chain = hash_pages(NAMESPACES[0], _key(tokens, 1).tokens, page_size=1)
        places = [names.index(name) for name in chain]
        assert places == sorted(places)


def test_the_ring_keeps_the_newest_and_knows_what_it_lost() -> None:
    log = EventLog(capacity=2)
    assert log.since(0) == ()
    assert log.since(1) is None
    for name in (b"a", b"b", b"c"):
        log.stored(b"", (name,))
    log.removed((b"c",))
    assert (log.first_sequence, log.next_sequence) == (2, 4)
    assert log.since(1) is None
    assert log.since(2) == (PagesStored(parent=b"", hashes=(b"c",)), PagesRemoved(hashes=(b"c",)))
    assert log.since(4) == ()
    assert log.since(5) is None


def test_names_cost_nothing_where_no_events_are_wanted() -> None:
    core = UnifiedTreeCore(page_size=1, components=(FullComponent(),))
    core.insert(_key([1, 2], 1), (np.arange(2, dtype=np.int32),), Access(tick=Tick(1)))
    assert core.hashes() == ()
