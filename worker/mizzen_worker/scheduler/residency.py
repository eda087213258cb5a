"""Owns entering and leaving of requests: slot, lease and state change together, or not at all.

Nobody else opens, grows or closes a lease or takes a slot for a request. Invariants:

- A request holds a slot and an open lease exactly while it is running, and the slot's row mirrors
  the lease's pages as far as ``num_synced`` says.
- What a step in flight may write goes back only after that step has settled (S4, S5): of a request
  that ends while a step has a row of it, slot and whole lease stay behind as a *departure*.
- What a step in flight only reads may go back earlier (pages that a checkpoint found cached
  already): steps run in the order of their launch, so the next owner's write comes after.
- Only settled tokens name pages in the tree: an end caches at most ``num_tokens - 1`` positions.
"""

from dataclasses import dataclass

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import PageKey
from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.batch import BoolArray, PageWrite
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.scheduler.prefix_groups import PrefixGroups
from mizzen_worker.scheduler.req import Req, ReqState, WaitingMemo
from mizzen_worker.scheduler.slot_book import SlotBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What a request that ended leaves behind until ``step`` has settled."""

    step: int
    slot: SlotIndex
    lease: KvLease
    key: PageKey | None


class Residency:
    """Pairs requests with cache, request table, slot book and groups."""

    def __init__(
        self,
        *,
        cache: UnifiedRadixCache,
        table: RequestTable,
        book: SlotBook,
        groups: PrefixGroups,
    ) -> None:
        self.cache = cache
        self.table = table
        self.book = book
        self.groups = groups
        self.departures: list[Departure] = []
        self._page_size = cache.page_size
        # Invariant: holds every running request whose lease has pages that were not synced.
        self._unsynced: dict[SlotIndex, Req] = {}

    def match(self, req: Req) -> Match:
        """Find what of a waiting request is cached and may be used.

        The answer is remembered: it is free while the tree stays the same, and else costs what is
        new below it.
        """
        memo = req.memo
        if memo.match is None or memo.match.epoch != self.cache.epoch:
            if memo.key is None:
                memo.key = req.key(req.num_matchable, page_size=self._page_size)
            memo.match = self.cache.match(memo.key, memo.match)
        return memo.match

    def enter(self, req: Req, match: Match) -> None:
        """WAITING to PREFILLING: take a slot and lease the cached prefix."""
        req.move(ReqState.PREFILLING)
        slot = req.slot = self.table.take()
        req.lease = self.cache.open(
            match, priority=req.cache_priority, num_prompt_tokens=req.num_prompt
        )
        req.memo = WaitingMemo()
        req.num_prefill = req.num_tokens
        num_kv = match.num_pages * self._page_size
        self.book.enter(slot, req, num_kv=num_kv)
        req.kv_lengths = self.book.num_kv
        self._unsynced[slot] = req
        if req.num_cached is None:
            req.num_cached = min(num_kv, req.num_prompt)

    def grow(self, wanted: list[tuple[Req, int]]) -> None:
        """Give running requests further pages; more than available is a bug."""
        held = [(req, *req.held(), num_pages) for req, num_pages in wanted]
        self.cache.grow([(lease, num_pages) for _, _, lease, num_pages in held])
        for req, slot, lease, _ in held:
            self.book.num_room[slot] = lease.num_pages * self._page_size
            self._unsynced[slot] = req

    def start_decoding(self, req: Req) -> None:
        """PREFILLING to DECODING: its last known token was launched."""
        req.move(ReqState.DECODING)
        self.book.start_decoding(req.held()[0])

    def retract(self, req: Req) -> None:
        """Running to WAITING: what it computed stays cached as long as nobody needs the room."""
        if self.book.is_in_flight(req.held()[0]):
            raise InvariantError([f"request {req.request_id} is retracted while it is in flight"])
        self._leave(req, ReqState.WAITING, is_cached=True)

    def end(self, req: Req, state: ReqState, *, is_cached: bool) -> None:
        """Any live state to a terminal one. ``is_cached``: its KV may serve later requests."""
        if req.is_running:
            self._leave(req, state, is_cached=is_cached)
        else:
            req.move(state)

    def checkpoint(self, req: Req, num_kv: int) -> None:
        """Cache what a running request has computed, ``num_kv`` positions of known tokens."""
        slot, lease = req.held()
        if num_kv // self._page_size > lease.num_tree:
            self.cache.checkpoint(lease, self._key_of_new(req, lease, num_kv))
            self.groups.note(slot, lease)
            if lease.num_synced < lease.num_pages:
                self._unsynced[slot] = req

    def sync(self, is_in_batch: BoolArray) -> tuple[PageWrite, ...]:
        """Tell the runner what of the rows of a batch's slots is new or changed."""
        writes = []
        for slot in [slot for slot in self._unsynced if is_in_batch[slot]]:
            _, lease = self._unsynced.pop(slot).held()
            first, lease.num_synced = lease.num_synced, lease.num_pages
            if first < lease.num_pages:
                writes.append(self.table.write(slot, first, lease.pages(first, lease.num_pages)))
                if first < lease.num_tree:
                    self.groups.note(slot, lease)
        return tuple(writes)

    def settled(self, step: int) -> None:
        """Every step up to this one has run: take back what was left behind for it."""
        self.book.settled(step)
        if self.departures:
            over = [departure for departure in self.departures if departure.step <= step]
            self.departures = [left for left in self.departures if left.step > step]
            for departure in over:
                self._take_back(departure)

    def _leave(self, req: Req, state: ReqState, *, is_cached: bool) -> None:
        slot, lease = req.held()
        num_kv = min(req.num_kv, req.num_tokens - 1)
        req.move(state)
        departure = Departure(
            step=self.book.last_step(slot),
            slot=slot,
            lease=lease,
            key=self._key_of_new(req, lease, num_kv) if is_cached else None,
        )
        req.slot = req.lease = req.kv_lengths = None
        self._unsynced.pop(slot, None)
        self.book.stop(slot)
        if self.book.is_in_flight(slot):
            self.departures.append(departure)
        else:
            self._take_back(departure)

    def _take_back(self, departure: Departure) -> None:
        self.cache.close(departure.lease, departure.key)
        self.table.give_back(departure.slot)
        self.groups.forget(departure.slot)
        self.book.leave(departure.slot)

    def _key_of_new(self, req: Req, lease: KvLease, num_kv: int) -> PageKey:
        """Name the pages that are computed and not the tree's yet."""
        return req.key(num_kv, page_size=self._page_size, first_page=lease.num_tree)
