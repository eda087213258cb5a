"""Measures the prefix tree: ``python -m tests.bench.bench_cache`` (operator:worker on the path).

A tree of many cached tokens is built, then each operation is timed alone: the median of batches, so
that a busy neighbour on the machine shows less.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.bench.report import publish

from mizzen_worker.cache.components.full import FullComponent
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.cache.results import Access
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.ids import Tick

NAMESPACE = Namespace(model="bench").digest()
HIT_TOKENS = 2048


class _Bench:
    """A populated tree and the keys to ask it for."""

    def __init__(self, page_size: int, cached_tokens: int) -> None:
        self.page_size = page_size
        self.core = UnifiedTreeCore(page_size=page_size, components=(FullComponent(),))
        self.tick = 0
        self.next_page = 1
        self.tokens = np.random.default_rng(7)
        self.keys: list[PageKey] = []
        shared = self.draw(1024)
        while self.core.num_evictable(0) * page_size < cached_tokens:
            # Half of them share a system prompt of 1,024 tokens.
            head = shared if len(self.keys) % 2 else self.draw(1024)
            key = self.key(np.concatenate([head, self.draw(HIT_TOKENS - 1024)]))
            self.insert(key)
            self.keys.append(key)
        # One path of many short edges, as conversations that branch at every page leave it.
        self.fragmented = self.draw(HIT_TOKENS)
        for end in range(16, HIT_TOKENS + 1, max(16, page_size)):
            self.insert(self.key(np.concatenate([self.fragmented[:end], self.draw(64)])))

    def draw(self, num_tokens: int) -> np.ndarray:
        return self.tokens.integers(0, 50_000, num_tokens, dtype=np.int32)

    def key(self, token_ids: np.ndarray) -> PageKey:
        return page_key(NAMESPACE, token_ids, page_size=self.page_size)

    def insert(self, key: PageKey) -> None:
        num_pages = len(key.tokens) // (4 * self.page_size)
        pages = np.arange(self.next_page, self.next_page + num_pages, dtype=np.int32)
        self.next_page += num_pages
        self.tick += 1
        self.core.insert(key, (pages,), Access(tick=Tick(self.tick)))

    def lock_and_unlock(self, key: PageKey) -> None:
        found = self.core.match(key)
        self.core.unlock(self.core.lock(found.node, found.num_pages, Access(tick=Tick(self.tick))))

    def pages(self, key: PageKey) -> None:
        found = self.core.match(key)
        self.core.pages(found.node, found.num_pages)


def _median_us(operation: Callable[[int], object], *, batches: int, per_batch: int) -> float:
    times = []
    for batch in range(batches):
        start = time.perf_counter()
        for number in range(per_batch):
            operation(batch * per_batch + number)
        times.append((time.perf_counter() - start) / per_batch)
    return statistics.median(times) * 1e6


def measure(page_size: int, cached_tokens: int) -> list[dict[str, str | int | float]]:
    """Time every operation on one tree."""
    bench = _Bench(page_size, cached_tokens)
    dice = random.Random(5)
    keys = [dice.choice(bench.keys) for _ in range(4000)]
    fragmented = bench.key(bench.fragmented)
    raw = [bench.draw(HIT_TOKENS) for _ in range(400)]
    new = [bench.key(tokens) for tokens in raw]
    followups = [
        PageKey(NAMESPACE, key.tokens + bench.key(bench.draw(256)).tokens) for key in keys[:400]
    ]
    operations: dict[str, tuple[Callable[[int], object], int]] = {
        "build key of 2048 tokens": (lambda i: bench.key(raw[i % 400]), 200),
        "match, 2048 hit": (lambda i: bench.core.match(keys[i]), 200),
        "match and read pages, 2048 hit": (lambda i: bench.pages(keys[i]), 200),
        "match, 2048 hit, fragmented path": (lambda _: bench.core.match(fragmented), 20),
        "match, miss": (lambda i: bench.core.match(new[i % 400]), 200),
        "match, lock, unlock, 2048 hit": (lambda i: bench.lock_and_unlock(keys[i]), 200),
        "insert 2048 + 256 new": (lambda i: bench.insert(followups[i]), 20),
        "insert 2048 new": (lambda i: bench.insert(new[i]), 20),
        "evict one leaf": (lambda _: bench.core.evict(0, 1), 20),
    }
    rows: list[dict[str, str | int | float]] = []
    for name, (operation, per_batch) in operations.items():
        took_us = _median_us(operation, batches=20, per_batch=per_batch)
        rows.append(
            {
                "page_size": page_size,
                "cached_tokens": cached_tokens,
                "operation": name,
                "us": round(took_us, 2),
                "per_second": round(1e6 / took_us),
            }
        )
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
