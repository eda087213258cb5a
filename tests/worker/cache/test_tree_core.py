"""Behaviour of the tree core that a random walk would rarely show clearly."""

from dataclasses import replace

import numpy as np
import pytest

from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.node_table import ROOT
from mizzen_worker.cache.page_key import (
    Namespace,
    PageKey,
    common_prefix_pages,
    hash_pages,
    page_key,
)
from mizzen_worker.cache.results import Access
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import Tick

NAMESPACE = Namespace(model="m").digest()


def _key(tokens: list[int], page_size: int = 1, namespace: bytes = NAMESPACE) -> PageKey:
    return page_key(namespace, np.array(tokens, dtype=np.int32), page_size=page_size)


def _core(page_size: int = 1) -> UnifiedTreeCore:
    return UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))


def _at(tick: int, priority: int = 0) -> Access:
    return Access(tick=Tick(tick), priority=priority)


def _pages(*pages: int) -> tuple[np.ndarray]:
    return (np.array(pages, dtype=np.int32),)


def test_match_stops_inside_an_edge_without_splitting_it() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), _at(1))
    found = core.match(_key([1, 2, 9]))
    assert found.num_pages == 2
    assert core.pages(found.node, found.num_pages).tolist() == [11, 12]
    assert len(list(core.views())) == 2


def test_a_partial_page_never_matches() -> None:
    core = _core(page_size=4)
    core.insert(_key([1, 2, 3, 4, 5, 6, 7, 8], 4), _pages(11, 12), _at(1))
    assert core.match(_key([1, 2, 3, 4, 5, 6], 4)).num_pages == 1
    assert core.match(_key([1, 2, 3], 4)).node == ROOT


def test_a_position_stays_valid_when_its_edge_is_split_under_it() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), _at(1))
    found = core.match(_key([1, 2, 3]))
    core.insert(_key([1, 9]), _pages(11, 19), _at(2))
    assert core.pages(found.node, found.num_pages).tolist() == [11, 12, 13]
    receipt = core.lock(found.node, found.num_pages, _at(3))
    assert core.num_protected(0) == 3
    core.unlock(receipt)
    assert core.num_protected(0) == 0


def test_a_receipt_counts_once() -> None:
    core = _core()
    core.insert(_key([1, 2]), _pages(11, 12), _at(1))
    found = core.match(_key([1, 2]))
    receipt = core.lock(found.node, found.num_pages, _at(2))
    other = core.lock(found.node, 1, _at(3))
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
    core.insert(_key([1, 2]), _pages(11, 12), _at(1))
    core.insert(_key([1, 3]), _pages(11, 13), _at(2))
    core.insert(_key([5]), _pages(15), _at(3))
    core.lock(core.match(_key([1, 2])).node, 2, _at(4))
    core.unlock(core.receipts()[0])
    order = [core.evict(0, 1).actions[0].units.tolist() for _ in range(4)]
    assert order == [[13], [15], [12], [11]]
    assert core.evict(0, 1).num_units == 0


def test_an_evicted_position_is_refused() -> None:
    core = _core()
    inserted = core.insert(_key([1, 2]), _pages(11, 12), _at(1))
    core.evict(0, 2)
    with pytest.raises(InvariantError, match="not in the tree"):
        core.lock(inserted.node, 2, _at(2))


@pytest.mark.parametrize(
    "other",
    [
        Namespace(model="m", salt="tenant"),
        Namespace(model="m", adapter="tenant"),
        Namespace(model="n"),
    ],
)
def test_namespaces_share_nothing_and_hash_differently(other: Namespace) -> None:
    """T18."""
    core = _core()
    core.insert(_key([1, 2]), _pages(11, 12), _at(1))
    key = _key([1, 2], namespace=other.digest())
    assert core.match(key).num_pages == 0
    assert common_prefix_pages(key, _key([1, 2]), page_size=1) == 0
    assert set(hash_pages(key.namespace, key.tokens, page_size=1)).isdisjoint(
        hash_pages(NAMESPACE, key.tokens, page_size=1)
    )


def test_fields_of_a_namespace_cannot_run_together() -> None:
    digests = {
        Namespace(model=model, adapter=adapter, salt=salt).digest()
        for model, adapter, salt in (
            ("ab", "c", ""), ("a", "bc", ""), ("abc", "", ""), ("ab", "", "c"), ("a", "b", "c"),
        )
    }  # fmt: skip
    assert len(digests) == 5


def test_the_hash_chain_names_prefixes() -> None:
    tokens = _key([1, 2, 3, 4, 5], 2).tokens
    chain = hash_pages(NAMESPACE, tokens, page_size=2)
    assert len(chain) == 2
    other = hash_pages(NAMESPACE, _key([1, 2, 9, 9], 2).tokens, page_size=2)
    assert other[0] == chain[0]
    assert other[1] != chain[1]
    assert hash_pages(chain[0], tokens[16 // 2 :], page_size=2)[0] == chain[1]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([], [1, 2], 0),
        ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], 2),
        ([1, 2, 3, 4], [1, 2, 3, 9], 1),
        ([1, 9, 3, 4], [1, 2, 3, 4], 0),
    ],
)
def test_common_prefix_is_whole_pages(left: list[int], right: list[int], expected: int) -> None:
    assert common_prefix_pages(_key(left, 2), _key(right, 2), page_size=2) == expected


def test_a_key_may_leave_out_the_pages_that_are_known() -> None:
    tokens = np.array([1, 2, 3, 4, 5, 6, 7], dtype=np.int32)
    whole = page_key(NAMESPACE, tokens, page_size=2)
    tail = page_key(NAMESPACE, tokens, page_size=2, first_page=2)
    assert whole.from_page(2, page_size=2) == tail
    assert (tail.first_page, tail.end_page(page_size=2), len(tail.tokens)) == (2, 3, 8)


def test_insert_refuses_a_value_of_the_wrong_length_before_any_change() -> None:
    core = _core()
    with pytest.raises(InvariantError, match="3 pages"):
        core.insert(_key([1, 2, 3]), _pages(11), _at(1))
    assert len(list(core.views())) == 1


def test_a_hint_is_the_answer_while_the_epoch_is_the_same() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), _at(1))
    found = core.match(_key([1, 2, 3, 4, 5]))
    core.unlock(core.lock(found.node, found.num_pages, _at(2)))
    assert core.match(_key([1, 2, 3, 4, 5]), found) is found, "a lock at a node's end is no change"
    core.insert(_key([1, 2, 3, 4, 5]), _pages(11, 12, 13, 14, 15), _at(3))
    assert core.match(_key([1, 2, 3, 4, 5]), found).num_pages == 5
    core.evict(0, 5)
    assert core.match(_key([1, 2, 3, 4, 5]), found).num_pages == 0


def test_prompt_and_answer_are_nodes_of_their_own() -> None:
    """An answer can go without its prompt, and what shares the prompt shares a node."""
    core = _core()
    inserted = core.insert(_key([1, 2, 3, 4, 5]), _pages(11, 12, 13, 14, 15), _at(1), boundary=3)
    assert sorted((view.start_page, view.end_page) for view in core.views()) == [
        (0, 0), (0, 3), (3, 5),
    ]  # fmt: skip
    assert core.pages(inserted.node, 5).tolist() == [11, 12, 13, 14, 15]
    sibling = core.match(_key([1, 2, 3, 9]))
    epoch = core.epoch
    core.lock(sibling.node, sibling.num_pages, _at(2))
    assert core.epoch == epoch, "leasing the prompt needs no split"
    assert core.evict(0, 5).actions[0].units.tolist() == [14, 15]
    assert core.match(_key([1, 2, 3, 4])).num_pages == 3


def test_eviction_takes_no_more_of_a_leaf_than_it_must_and_from_its_end() -> None:
    core = _core()
    core.insert(_key([1, 2, 3, 4]), _pages(11, 12, 13, 14), _at(1))
    core.insert(_key([7]), _pages(17), _at(2))
    assert core.evict(0, 1).actions[0].units.tolist() == [14]
    assert core.evict(0, 2).actions[0].units.tolist() == [12, 13]
    assert core.match(_key([1, 2])).num_pages == 1
    assert core.evict(0, 2).actions[0].units.tolist() == [11, 17]
    assert check(core) == []


def test_extending_costs_nothing_for_the_path_above() -> None:
    """A long prompt in many chunks: nodes above the lock are neither walked nor counted again."""
    core = _core()
    receipt = core.lock(ROOT, 0, _at(1))
    for chunk in range(50):
        key = PageKey(NAMESPACE, _key([chunk, chunk]).tokens, 2 * chunk)
        page = 2 * chunk + 1
        extended = core.extend(receipt, key, _pages(page, page + 1), _at(chunk + 2))
        receipt = extended.receipt
        assert extended.pages.tolist() == [page, page + 1]
    assert core.num_protected(0) == 100
    assert {view.num_uses for view in core.views() if view.node_id != ROOT} == {1}
    core.unlock(receipt)
    assert core.num_evictable(0) == 100
    assert check(core) == []


def test_an_insert_below_must_start_where_the_lock_ends() -> None:
    core = _core()
    core.insert(_key([1, 2]), _pages(11, 12), _at(1))
    receipt = core.lock(core.match(_key([1])).node, 1, _at(2))
    before = [repr(view) for view in core.views()]
    with pytest.raises(InvariantError, match="from 2 on at a place of 1 pages"):
        core.extend(receipt, PageKey(NAMESPACE, _key([3]).tokens, 2), _pages(13), _at(3))
    with pytest.raises(InvariantError, match="starts at page 1"):
        core.match(PageKey(NAMESPACE, _key([3]).tokens, 1))
    assert [repr(view) for view in core.views()] == before


def test_check_sees_a_broken_tree() -> None:
    """The checker is what every other test leans on, so it must be able to fail."""
    core = _core()
    core.insert(_key([1, 2, 3]), _pages(11, 12, 13), _at(1))
    core.insert(_key([1, 7]), _pages(11, 12), _at(1))
    assert any("twice" in violation for violation in check(core))
    leaf = core._table.get(core.match(_key([1, 2, 3])).node)
    assert leaf is not None
    leaf.locks[0] = 2
    leaf.edge = leaf.edge[4:]
    found = "\n".join(check(core))
    for words in ("receipts say", "edge of", "counts", "candidates", "first page"):
        assert words in found
