"""Behaviour of the tree core that a random walk would rarely show clearly."""

from dataclasses import replace

import numpy as np
import pytest

from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.page_key import Namespace, PageKey, hash_chain, page_key
from mizzen_worker.cache.tree_core import ROOT, UnifiedTreeCore
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import Tick

NAMESPACE = Namespace(model="m").digest()


def _key(tokens: list[int], page_size: int = 1, namespace: bytes = NAMESPACE) -> PageKey:
    return page_key(namespace, np.array(tokens, dtype=np.int32), page_size=page_size)


def _core(page_size: int = 1) -> UnifiedTreeCore:
    return UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))


def _pages(*pages: int) -> tuple[np.ndarray]:
    return (np.array(pages, dtype=np.int32),)


def test_match_stops_inside_an_edge_without_splitting_it() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), Tick(1))
    found = core.match(_key([1, 2, 9]))
    assert found.num_pages == 2
    assert core.pages(found.node, found.num_pages).tolist() == [11, 12]
    assert len(list(core.views())) == 2


def test_a_partial_page_never_matches() -> None:
    core = _core(page_size=4)
    core.insert(_key([1, 2, 3, 4, 5, 6, 7, 8], 4), _pages(11, 12), Tick(1))
    assert core.match(_key([1, 2, 3, 4, 5, 6], 4)).num_pages == 1
    assert core.match(_key([1, 2, 3], 4)).node == ROOT


def test_a_position_stays_valid_when_its_edge_is_split_under_it() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), Tick(1))
    found = core.match(_key([1, 2, 3]))
    core.insert(_key([1, 9]), _pages(11, 19), Tick(2))
    assert core.pages(found.node, found.num_pages).tolist() == [11, 12, 13]
    receipt = core.lock(found.node, found.num_pages, Tick(3))
    assert core.num_protected(0) == 3
    core.unlock(receipt)
    assert core.num_protected(0) == 0


def test_a_receipt_counts_once() -> None:
    core = _core()
    core.insert(_key([1, 2]), _pages(11, 12), Tick(1))
    found = core.match(_key([1, 2]))
    receipt = core.lock(found.node, found.num_pages, Tick(2))
    other = core.lock(found.node, 1, Tick(3))
    core.unlock(receipt)
    with pytest.raises(InvariantError, match="not outstanding"):
        core.unlock(receipt)
    with pytest.raises(InvariantError, match="not outstanding"):
        core.unlock(replace(other, node=ROOT))
    assert core.num_protected(0) == 1
    core.unlock(other)
    assert check(core) == []


def test_eviction_takes_the_least_recent_leaf_and_never_a_parent_first() -> None:
    core = _core()
    core.insert(_key([1, 2]), _pages(11, 12), Tick(1))
    core.insert(_key([1, 3]), _pages(11, 13), Tick(2))
    core.insert(_key([5]), _pages(15), Tick(3))
    core.lock(core.match(_key([1, 2])).node, 2, Tick(4))
    core.unlock(core.receipts()[0])
    order = [core.evict(0, 1).actions[0].units.tolist() for _ in range(4)]
    assert order == [[13], [15], [12], [11]]
    assert core.evict(0, 1).num_units == 0


def test_an_evicted_position_is_refused() -> None:
    core = _core()
    inserted = core.insert(_key([1, 2]), _pages(11, 12), Tick(1))
    core.evict(0, 2)
    with pytest.raises(InvariantError, match="not in the tree"):
        core.lock(inserted.node, 2, Tick(2))


def test_namespaces_share_nothing_and_hash_differently() -> None:
    core = _core()
    salted = Namespace(model="m", salt="tenant").digest()
    core.insert(_key([1, 2]), _pages(11, 12), Tick(1))
    assert core.match(_key([1, 2], namespace=salted)).num_pages == 0
    assert set(hash_chain(_key([1, 2]), page_size=1)).isdisjoint(
        hash_chain(_key([1, 2], namespace=salted), page_size=1)
    )
    assert Namespace(model="ab", salt="c").digest() != Namespace(model="a", salt="bc").digest()


def test_the_hash_chain_names_prefixes() -> None:
    chain = hash_chain(_key([1, 2, 3, 4, 5], 2), page_size=2)
    assert len(chain) == 2
    assert hash_chain(_key([1, 2, 9, 9], 2), page_size=2)[0] == chain[0]
    assert hash_chain(_key([1, 2, 9, 9], 2), page_size=2)[1] != chain[1]


def test_insert_refuses_a_value_of_the_wrong_length_before_any_change() -> None:
    core = _core()
    with pytest.raises(InvariantError, match="3 pages"):
        core.insert(_key([1, 2, 3]), _pages(11), Tick(1))
    assert len(list(core.views())) == 1


def test_check_sees_a_broken_tree() -> None:
    """The checker is what every other test leans on, so it must be able to fail."""
    core = _core()
    core.insert(_key([1, 2, 3]), _pages(11, 12, 13), Tick(1))
    core.insert(_key([1, 7]), _pages(11, 12), Tick(1))
    assert any("twice" in violation for violation in check(core))
    leaf = core._nodes[core.match(_key([1, 2, 3])).node]
    leaf.locks[0] = 2
    leaf.edge = leaf.edge[4:]
    found = "\n".join(check(core))
    for words in ("receipts say", "edge of", "counts", "candidates", "first page"):
        assert words in found
