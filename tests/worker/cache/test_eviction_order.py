"""The order is exact for ranks that rise silently and ranks that fall, against a sorted list."""

import random
from typing import TYPE_CHECKING

import pytest
from tests.scale import count

from mizzen_worker.cache.eviction_order import RANKS, EvictionOrder
from mizzen_worker.cache.node import Node
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import NodeId, Tick

if TYPE_CHECKING:
    from collections.abc import Iterator


def _node(node_id: int, *, last_access: int = 0, num_uses: int = 1, priority: int = 0) -> Node:
    return Node(
        node_id=NodeId(node_id),
        parent=None,
        edge=b"",
        start_page=0,
        end_page=0,
        child_key=b"",
        values=[None],
        locks=[0],
        last_access=Tick(last_access),
        num_uses=num_uses,
        priority=priority,
        hashes=(),
    )


def _drain(order: EvictionOrder) -> "Iterator[int]":
    while (node := order.take_first()) is not None:
        yield node.node_id


NODES = (
    {"last_access": 4, "num_uses": 1, "priority": 2},
    {"last_access": 3, "num_uses": 2, "priority": 0},
    {"last_access": 2, "num_uses": 5, "priority": 1},
    {"last_access": 1, "num_uses": 3, "priority": 1},
)


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        (CacheEviction.LRU, [3, 2, 1, 0]),
        (CacheEviction.LFU, [0, 1, 3, 2]),
        (CacheEviction.SLRU, [0, 3, 2, 1]),
        (CacheEviction.PRIORITY, [1, 3, 2, 0]),
    ],
)
def test_each_order_by_hand(eviction: CacheEviction, expected: list[int]) -> None:
    order = EvictionOrder(RANKS[eviction])
    for node_id, facts in enumerate(NODES):
        order.add(_node(node_id, **facts))
    assert list(_drain(order)) == expected


def test_equal_ranks_leave_in_the_order_of_making() -> None:
    order = EvictionOrder(RANKS[CacheEviction.LRU])
    for node_id in (2, 0, 1):
        order.add(_node(node_id))
    assert list(_drain(order)) == [0, 1, 2]


def test_ranks_may_rise_silently_and_fall_when_told() -> None:
    dice = random.Random(5)
    order = EvictionOrder(RANKS[CacheEviction.PRIORITY])
    nodes = [_node(node_id) for node_id in range(12)]
    candidates: set[int] = set()
    for _ in range(count(check=5_000, full=100_000)):
        node = dice.choice(nodes)
        match dice.randrange(6):
            case 0:
                order.add(node)
                candidates.add(node.node_id)
            case 1:
                order.discard(node.node_id)
                candidates.discard(node.node_id)
            case 2:
                node.priority += dice.randint(0, 3)
            case 3:
                node.priority -= dice.randint(0, 3)
                if node.node_id in candidates:
                    order.add(node)
            case 4:
                node.last_access = Tick(node.last_access + 1)
            case 5:
                taken = order.take_first()
                first = min(
                    ((nodes[i].priority, nodes[i].last_access, i) for i in candidates),
                    default=None,
                )
                assert (taken and taken.node_id) == (first and first[2])
                candidates -= {taken.node_id} if taken else set()
        assert order.candidate_ids() == candidates
        assert len(order._heap) <= 2 * len(nodes) + 64, "the heap is bounded"
