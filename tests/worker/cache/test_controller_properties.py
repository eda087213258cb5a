"""Requests come and go over one pool: M1, M2, M3 and M5 after every call, and no wrong page ever.

Each page remembers which prefix was written to it. What the cache hands out must hold the prefix
that it is handed out for; whoever takes a page spoils it first.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.scale import count

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import Namespace, PageKey, page_key
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.memory.allocator import PageAllocator

if TYPE_CHECKING:
    from mizzen_worker.cache.results import Match

NAMESPACES = [
    Namespace(model="m", adapter=adapter, salt=salt).digest()
    for adapter, salt in (("", ""), ("a", ""), ("", "a"))
]
NUM_PAGES = 24
WHICH = st.integers(0, 9)


@dataclass
class _Request:
    namespace: bytes
    tokens: list[int]
    lease: KvLease
    num_kv: int


class CacheMachine(RuleBasedStateMachine):
    """One cache, requests that run, and waiting ones that only look."""

    page_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[_Request] = []
        self.written: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.waiting: list[tuple[PageKey, Match]] = []
        self._start(CacheEviction.LRU)

    def _start(self, eviction: CacheEviction) -> None:
        self.allocator = PageAllocator(num_pages=NUM_PAGES)
        self.cache = UnifiedRadixCache(
            allocator=self.allocator, page_size=self.page_size, eviction=eviction
        )

    @initialize(eviction=st.sampled_from(CacheEviction))
    def start(self, eviction: CacheEviction) -> None:
        self._start(eviction)

    def _key(self, request: _Request, num_tokens: int, first_page: int = 0) -> PageKey:
        tokens = np.array(request.tokens[:num_tokens], dtype=np.int32)
        return page_key(request.namespace, tokens, page_size=self.page_size, first_page=first_page)

    def _require_written(self, request: _Request, num_tokens: int) -> None:
        for page, number in enumerate(range(0, num_tokens, self.page_size)):
            if number + self.page_size <= num_tokens:
                held = self.written[int(request.lease.pages(page, page + 1)[0])]
                whole = tuple(request.tokens[: number + self.page_size])
                assert held == (request.namespace, whole), "a page of somebody else's tokens"

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=16),
        priority=st.integers(0, 2),
        prompt=st.integers(0, 16),
    )
    def open(self, namespace: bytes, tokens: list[int], priority: int, prompt: int) -> None:
        key = page_key(namespace, np.array(tokens, dtype=np.int32), page_size=self.page_size)
        found = self.cache.match(key)
        available = self.cache.num_available
        newly = self.cache.num_newly_protected(found)
        lease = self.cache.open(found, priority=priority, num_prompt_tokens=prompt)
        assert self.cache.num_available == available - newly
        request = _Request(namespace, tokens, lease, found.num_pages * self.page_size)
        self._require_written(request, request.num_kv)
        self.requests.append(request)

    @rule(which=WHICH, num_tokens=st.integers(1, 8), more=st.lists(st.integers(0, 1), max_size=4))
    def compute(self, which: int, num_tokens: int, more: list[int]) -> None:
        """Take pages for some tokens, as far as there are any, and write them."""
        if not self.requests:
            return
        request = self.requests[which % len(self.requests)]
        request.tokens = [*request.tokens, *more]
        lease = request.lease
        end = min(len(request.tokens), request.num_kv + num_tokens)
        needed = -(-end // self.page_size) - lease.num_pages
        if needed > self.cache.num_available:
            return
        self.cache.grow([(lease, max(0, needed))])
        for page in lease.pages(lease.num_pages - max(0, needed), lease.num_pages).tolist():
            self.written.pop(page, None)
        for page in range(request.num_kv // self.page_size, end // self.page_size):
            whole = tuple(request.tokens[: (page + 1) * self.page_size])
            assert page >= lease.num_tree, "writes to a page of the tree"
            self.written[int(lease.pages(page, page + 1)[0])] = (request.namespace, whole)
        request.num_kv = max(request.num_kv, end)

    @rule(which=WHICH, is_whole_key=st.booleans())
    def checkpoint(self, which: int, *, is_whole_key: bool) -> None:
        if not self.requests:
            return
        request = self.requests[which % len(self.requests)]
        first = 0 if is_whole_key else request.lease.num_tree
        synced = request.lease.num_synced = request.lease.num_pages
        before = request.lease.pages(0, synced).tolist()
        self.cache.checkpoint(request.lease, self._key(request, request.num_kv, first))
        after = request.lease.pages(0, synced).tolist()
        assert request.lease.num_tree == request.num_kv // self.page_size
        told = request.lease.num_synced
        assert before[:told] == after[:told], "a changed row that the runner is not told about"
        self._require_written(request, request.num_kv)

    @rule(which=WHICH, is_cached=st.booleans())
    def close(self, which: int, *, is_cached: bool) -> None:
        if not self.requests:
            return
        request = self.requests.pop(which % len(self.requests))
        key = self._key(request, request.num_kv, request.lease.num_tree) if is_cached else None
        self.cache.close(request.lease, key)
        if is_cached:
            found = self.cache.match(self._key(request, request.num_kv))
            assert found.num_pages == request.num_kv // self.page_size

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=16),
    )
    def wait(self, namespace: bytes, tokens: list[int]) -> None:
        key = page_key(namespace, np.array(tokens, dtype=np.int32), page_size=self.page_size)
        self.waiting = [*self.waiting[-3:], (key, self.cache.match(key))]

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        assert self.cache.num_available == self.allocator.num_free

    @invariant()
    def is_sound(self) -> None:
        assert self.cache.violations() == []
        assert self.cache.count_violations() == []
        for number, (key, hint) in enumerate(self.waiting):
            known = self.cache.match(key, hint)
            assert known == self.cache.match(key), "a remembered match misled"
            self.waiting[number] = (key, known)

    def teardown(self) -> None:
        while self.requests:
            self.close(0, is_cached=True)
        self.cache.flush()
        assert self.allocator.num_free == NUM_PAGES


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_no_page_is_lost_or_shared_wrongly(page_size: int) -> None:
    machine = type("Machine", (CacheMachine,), {"page_size": page_size})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=count(check=30, full=300), stateful_step_count=40),
    )
