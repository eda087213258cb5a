"""The controller's promises to requests: leases, checkpoints, and nothing lost."""

import numpy as np
import pytest

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.memory.allocator import PageAllocator

NAMESPACE = Namespace(model="m").digest()


def _key(tokens: list[int]) -> PageKey:
    return page_key(NAMESPACE, np.array(tokens, dtype=np.int32), page_size=2)


def _cache(num_pages: int = 8, eviction: CacheEviction = CacheEviction.LRU) -> UnifiedRadixCache:
    allocator = PageAllocator(num_pages=num_pages)
    return UnifiedRadixCache(allocator=allocator, page_size=2, eviction=eviction)


def test_a_closed_lease_leaves_its_prefix_for_the_next() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 3)])
    pages = lease.pages(0, 3).tolist()
    cache.close(lease, _key([1, 2, 3, 4, 5]))
    assert cache.num_available == 8
    again = cache.open(cache.match(_key([1, 2, 3, 4, 9, 9])))
    assert again.pages(0, again.num_pages).tolist() == pages[:2]
    assert cache.violations() == []


def test_the_second_of_two_equal_prefixes_takes_over_the_first_ones_pages() -> None:
    cache = _cache()
    first, second = (cache.open(cache.match(_key([]))) for _ in range(2))
    cache.grow([(first, 2), (second, 3)])
    second.num_synced = 3
    cache.checkpoint(first, _key([1, 2, 3, 4]))
    cache.checkpoint(second, _key([1, 2, 3, 4]))
    assert second.pages(0, 2).tolist() == first.pages(0, 2).tolist()
    assert second.num_synced == 0, "the runner must be told about the changed row"
    assert cache.num_available == 8 - 2 - 1
    assert cache.violations() == []


def test_growing_evicts_only_what_nobody_uses() -> None:
    cache = _cache(num_pages=4)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        lease = cache.open(cache.match(_key([])))
        cache.grow([(lease, 1)])
        cache.close(lease, _key(tokens))
    kept = cache.open(cache.match(_key([2, 2])))
    other = cache.open(cache.match(_key([])))
    cache.grow([(other, 3)])
    assert kept.pages(0, 1).tolist() == cache.open(cache.match(_key([2, 2]))).pages(0, 1).tolist()
    with pytest.raises(InvariantError):
        cache.grow([(other, 1)])
    assert cache.violations() == []


def test_growing_evicts_no_more_than_needed() -> None:
    cache = _cache()
    for tokens in ([1, 1], [2, 2], [3, 3]):
        lease = cache.open(cache.match(_key([])))
        cache.grow([(lease, 1)])
        cache.close(lease, _key(tokens))
    cache.grow([(cache.open(cache.match(_key([]))), 6)])
    assert cache.num_cached == 2
    assert cache.match(_key([1, 1])).num_pages == 0, "the oldest goes first"


def test_closing_twice_is_once_and_a_closed_lease_cannot_be_used() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 2)])
    cache.close(lease, None)
    cache.close(lease, None)
    assert cache.num_available == 8
    with pytest.raises(InvariantError, match="closed"):
        cache.checkpoint(lease, _key([1, 2]))


def test_flush_keeps_what_is_locked() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 2)])
    cache.checkpoint(lease, _key([1, 2]))
    other = cache.open(cache.match(_key([])))
    cache.grow([(other, 2)])
    cache.close(other, _key([5, 6, 7, 8]))
    assert cache.flush() == 2
    assert cache.match(_key([1, 2])).num_pages == 1
    assert cache.num_cached == 1
    assert cache.violations() == []


def test_violations_sees_a_lost_and_a_doubly_held_page() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 2)])
    lease._pages[0] = lease._pages[1]
    found = "\n".join(cache.violations())
    assert "held by" in found
    assert "nobody holds" in found


def test_what_a_lease_gives_back_is_known_before_it_is_closed() -> None:
    cache = _cache()
    first = cache.open(cache.match(_key([])))
    cache.grow([(first, 4)])
    cache.checkpoint(first, _key([1, 2, 3, 4, 5, 6]))
    second = cache.open(cache.match(_key([1, 2, 3, 4, 9, 9])))
    cache.grow([(second, 1)])
    # Of the first's four pages the second has locked two.
    assert cache.num_returned(first, num_kept=0) == 2
    assert cache.num_returned(first, num_kept=3) == 1
    assert cache.num_returned(second, num_kept=0) == 1
    for lease, num_returned in ((first, 2), (second, 3)):
        assert cache.num_returned(lease, num_kept=0) == num_returned
        before = cache.num_available
        cache.close(lease, None)
        assert cache.num_available == before + num_returned


def test_a_path_names_the_nodes_down_to_a_match() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 2)])
    cache.close(lease, _key([1, 2, 3, 4]))
    above, below = (cache.open(cache.match(_key(tokens))) for tokens in ([1, 2], [1, 2, 3, 4]))
    assert cache.path(above.receipt.node) == (above.receipt.node,)
    assert cache.path(below.receipt.node) == (above.receipt.node, below.receipt.node)
    assert cache.path(cache.match(_key([7, 7])).node) == ()


def test_a_prompt_is_a_node_of_its_own_and_the_page_it_ends_in_is_the_answers() -> None:
    cache = _cache()
    lease = cache.open(cache.match(_key([])), num_prompt_tokens=5)
    cache.grow([(lease, 4)])
    cache.close(lease, _key([1, 2, 3, 4, 5, 6, 7, 8]))
    sibling = cache.match(_key([1, 2, 3, 4, 5, 9]))
    epoch = cache.epoch
    again = cache.open(sibling)
    assert again.num_pages == 2
    assert cache.epoch == epoch, "the sibling leases the prompt's node without a split"
    assert cache.flush() == 2, "the answer can go while the prompt is in use"


def test_pages_of_urgent_requests_stay_longer_also_where_others_used_them_since() -> None:
    cache = _cache(eviction=CacheEviction.PRIORITY)
    for tokens, priority in (([1, 1], 5), ([2, 2], 0), ([3, 3], 3)):
        lease = cache.open(cache.match(_key([])), priority=priority)
        cache.grow([(lease, 1)])
        cache.checkpoint(lease, _key(tokens))
        cache.close(lease, None)
    cache.close(cache.open(cache.match(_key([1, 1])), priority=1), None)
    cache.close(cache.open(cache.match(_key([2, 2])), priority=4), None)
    newcomer = cache.open(cache.match(_key([])))
    for num_pages, expected in ((6, [1, 1, 0]), (1, [1, 0, 0])):
        cache.grow([(newcomer, num_pages)])
        kept = [cache.match(_key(tokens)).num_pages for tokens in ([1, 1], [2, 2], [3, 3])]
        assert kept == expected, "the highest of all that used it counts: 5, 4, 3"


def test_a_split_is_another_epoch() -> None:
    """A match that ended inside the edge is true still, but the node it names has moved down."""
    cache = _cache()
    lease = cache.open(cache.match(_key([])))
    cache.grow([(lease, 2)])
    cache.close(lease, _key([1, 2, 3, 4]))
    inside = cache.match(_key([1, 2, 9, 9]))
    cache.open(inside)
    assert inside.epoch != cache.epoch
    assert cache.match(_key([1, 2, 9, 9]), inside) == cache.match(_key([1, 2, 9, 9]))
    assert cache.match(_key([1, 2, 9, 9])).node != inside.node


def test_a_chunk_costs_what_is_new_in_it() -> None:
    """Looked at by what a checkpoint touches: neither path nor pages before the lock."""
    cache = _cache(num_pages=400)
    lease = cache.open(cache.match(_key([])))
    tokens = list(range(400))
    for end in range(2, 401, 2):
        cache.grow([(lease, 1)])
        tail = page_key(
            NAMESPACE, np.array(tokens[:end], np.int32), page_size=2, first_page=lease.num_tree
        )
        assert len(tail.tokens) == 8
        cache.checkpoint(lease, tail)
    views = [view for view in cache._core.views() if view.parent_id is not None]
    assert len(views) == 200
    assert {(view.num_uses, view.locks) for view in views} == {(1, (1,))}
    assert cache.violations() == []
