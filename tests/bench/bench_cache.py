"""Measures the prefix tree: ``python -m tests.bench.bench_cache`` (operator:worker on the path).

Trees of many cached tokens, of three shapes, and every operation timed alone on them: the median
of batches in CPU time, so that a busy neighbour on the machine shows less. ``full`` runs the
controller on a pool without a free page, where each new request evicts.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.bench.report import publish

from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.events import EventLog
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.cache.results import Access
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import Tick
from mizzen_worker.memory.allocator import PageAllocator

if TYPE_CHECKING:
    from mizzen_worker.cache.lease import KvLease

NAMESPACE = Namespace(model="bench").digest()
HIT_TOKENS = 2048
Row = dict[str, str | int | float]
Operation = tuple[Callable[[int], object], int]
"""What is timed, given the number of the call, and how many calls make one batch."""


class _Tree:
    """A populated tree and the keys to ask it for."""

    def __init__(self, page_size: int, cached_tokens: int, *, is_fragmented: bool) -> None:
        self.page_size = page_size
        self.core = UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))
        self.tick = 0
        self.next_page = 1
        self.dice = np.random.default_rng(7)
        self.keys: list[PageKey] = []
        shared = self.draw(1024)
        while self.core.num_evictable(0) * page_size < cached_tokens:
            # Half of them share a system prompt of 1,024 tokens.
            head = shared if len(self.keys) % 2 else self.draw(1024)
            tokens = np.concatenate([head, self.draw(HIT_TOKENS - 1024)])
            self.insert(self.key(tokens))
            self.keys.append(self.key(tokens))
            if is_fragmented:
                # Branches that leave the path every few pages, as conversations do.
                for end in range(64, HIT_TOKENS, 128):
                    self.insert(self.key(np.concatenate([tokens[:end], self.draw(64)])))
        # One path of 128 edges.
        self.deep = self.draw(128 * max(16, page_size))
        for end in range(max(16, page_size), len(self.deep) + 1, max(16, page_size)):
            self.insert(self.key(np.concatenate([self.deep[:end], self.draw(64)])))

    def draw(self, num_tokens: int) -> Int32Array:
        return self.dice.integers(0, 50_000, num_tokens, dtype=np.int32)

    def key(self, token_ids: Int32Array) -> PageKey:
        return page_key(NAMESPACE, token_ids, page_size=self.page_size)

    def access(self) -> Access:
        self.tick += 1
        return Access(tick=Tick(self.tick))

    def insert(self, key: PageKey) -> None:
        num_pages = key.end_page(page_size=self.page_size)
        pages = np.arange(self.next_page, self.next_page + num_pages, dtype=np.int32)
        self.next_page += num_pages
        self.core.insert(key, (pages,), self.access())

    def lock_and_unlock(self, key: PageKey) -> None:
        found = self.core.match(key)
        self.core.unlock(self.core.lock(found.node, found.num_pages, self.access()))

    def pages(self, key: PageKey) -> None:
        found = self.core.match(key)
        self.core.pages(found.node, found.num_pages)

    def operations(self) -> dict[str, Operation]:
        dice = random.Random(5)
        keys = [dice.choice(self.keys) for _ in range(4000)]
        deep = self.key(self.deep)
        raw = [self.draw(HIT_TOKENS) for _ in range(400)]
        new = [self.key(tokens) for tokens in raw]
        followups = [
            PageKey(NAMESPACE, key.tokens + self.key(self.draw(256)).tokens) for key in keys[:400]
        ]
        hints = [self.core.match(key) for key in keys]
        deep_hint = self.core.match(deep)
        self.insert(new[-1])  # another epoch
        return {
            "build key of 2048 tokens": (lambda i: self.key(raw[i % 400]), 200),
            "match, 2048 hit": (lambda i: self.core.match(keys[i]), 200),
            "match on from an earlier match": (lambda i: self.core.match(keys[i], hints[i]), 200),
            "match and read pages, 2048 hit": (lambda i: self.pages(keys[i]), 200),
            "match, miss": (lambda i: self.core.match(new[i % 300]), 200),
            "match, path of 128 edges": (lambda _: self.core.match(deep), 20),
            "match on, path of 128 edges": (lambda _: self.core.match(deep, deep_hint), 200),
            "match, lock, unlock, 2048 hit": (lambda i: self.lock_and_unlock(keys[i]), 200),
            "lock, unlock, path of 128 edges": (lambda _: self.lock_and_unlock(deep), 20),
            "insert 2048 + 256 new": (lambda i: self.insert(followups[i]), 20),
            "insert 2048 new": (lambda i: self.insert(new[i % 399]), 19),
            "evict 1 page": (lambda _: self.core.evict(0, 1), 20),
            "evict 64 pages": (lambda _: self.core.evict(0, 64), 20),
        }


class _FullPool:
    """A controller whose pool has no free page: what a request takes, another leaves."""

    def __init__(self, page_size: int, cached_tokens: int, *, has_events: bool) -> None:
        self.page_size = page_size
        self.cache = UnifiedRadixCache(
            allocator=PageAllocator(num_pages=cached_tokens // page_size),
            page_size=page_size,
            eviction=CacheEviction.LRU,
            event_log=EventLog(capacity=10_000) if has_events else None,
        )
        self.dice = np.random.default_rng(3)
        while self.cache.num_cached + HIT_TOKENS // page_size < self.cache.num_pages:
            self.request(0)
        self.prompts = [self.draw() for _ in range(400)]

    def draw(self) -> Int32Array:
        return self.dice.integers(0, 50_000, HIT_TOKENS, dtype=np.int32)

    def request(self, number: int) -> None:
        """Match, open, grow, checkpoint and close one prompt of 2,048 new tokens."""
        tokens = self.draw() if number == 0 else self.prompts[number % 400]
        key = page_key(NAMESPACE, tokens, page_size=self.page_size)
        lease = self.cache.open(self.cache.match(key))
        self.cache.grow([(lease, HIT_TOKENS // self.page_size - lease.num_pages)])
        self.cache.checkpoint(lease, key)
        self.cache.close(lease, None)


class _LongPrompt:
    """One prompt of many chunks of 512 tokens; each call computes and caches one."""

    def __init__(self, page_size: int, num_chunks: int) -> None:
        self.page_size = page_size
        num_pages = num_chunks * 512 // page_size
        self.cache = UnifiedRadixCache(
            allocator=PageAllocator(num_pages=num_pages), page_size=page_size
        )
        self.tokens = np.random.default_rng(3).integers(0, 50_000, 512 * num_chunks, dtype=np.int32)
        self.lease: KvLease = self.cache.open(self.cache.match(PageKey(NAMESPACE, b"")))
        self.num_kv = 0

    def chunk(self) -> None:
        self.num_kv += 512
        self.cache.grow([(self.lease, 512 // self.page_size)])
        key = page_key(
            NAMESPACE,
            self.tokens[: self.num_kv],
            page_size=self.page_size,
            first_page=self.lease.num_tree,
        )
        self.cache.checkpoint(self.lease, key)


def _batch_us(operation: Callable[[int], object], first: int, count: int) -> float:
    start = time.thread_time()
    for number in range(first, first + count):
        operation(number)
    return (time.thread_time() - start) / count * 1e6


def _row(shape: str, page_size: int, tokens: int, name: str, took_us: float) -> Row:
    return {
        "tree": shape,
        "page_size": page_size,
        "cached_tokens": tokens,
        "operation": name,
        "us": round(took_us, 2),
        "per_second": round(1e6 / took_us),
    }


def measure(page_size: int, cached_tokens: int) -> list[Row]:
    """Time every operation on every shape of tree."""
    rows = []
    for shape in ("plain", "fragmented"):
        tree = _Tree(page_size, cached_tokens, is_fragmented=shape == "fragmented")
        for name, (operation, count) in tree.operations().items():
            took_us = statistics.median(
                _batch_us(operation, batch * count, count) for batch in range(20)
            )
            rows.append(_row(shape, page_size, cached_tokens, name, took_us))
    for name, has_events in (("request of 2048 new", False), ("the same with events", True)):
        pool = _FullPool(page_size, cached_tokens, has_events=has_events)
        took_us = statistics.median(
            _batch_us(pool.request, 1 + batch * 20, 20) for batch in range(19)
        )
        rows.append(_row("full", page_size, cached_tokens, name, took_us))
    prompt = _LongPrompt(page_size, 2048)
    times = [_batch_us(lambda _: prompt.chunk(), 0, 64) for _ in range(32)]
    for name, took_us in (
        ("checkpoint of chunk 65 to 512", statistics.median(times[1:8])),
        ("checkpoint of chunk 1537 to 2048", statistics.median(times[24:])),
    ):
        rows.append(_row("long prompt", page_size, 2048 * 512, name, took_us))
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--cached-tokens", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, default=Path("out/bench/cache.json"))
    arguments = parser.parse_args()
    rows = [
        row
        for page_size in arguments.page_sizes
        for row in measure(page_size, arguments.cached_tokens)
    ]
    publish("cache", rows, arguments.json)


if __name__ == "__main__":
    main()
