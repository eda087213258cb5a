"""Owns the comparison of everybody's books: requests, request table, leases, tree and pool.

Changes nothing. ``audit`` recomputes everything; ``audit_counts`` compares counts only and is cheap
enough for every time the scheduler falls idle.
"""

from collections.abc import Iterator

import numpy as np

from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.residency import Residency
from mizzen_worker.scheduler.roster import Roster


def audit(roster: Roster, residency: Residency) -> list[str]:
    """List every broken invariant (M1, M2, M3, S1, S2 and the tree's). O(pool)."""
    found = residency.cache.violations()
    found += _broken_containers(roster)
    for req in roster.running:
        found += _broken_holdings(req, residency)
    found += [
        f"slot {departure.slot} is kept for step {departure.step}, which has settled"
        for departure in residency.departures
        if not residency.book.is_in_flight(departure.slot)
    ]
    found += audit_counts(roster, residency)
    return found


def audit_counts(roster: Roster, residency: Residency) -> list[str]:
    """Compare counts: leases and slots with running requests, pages with the pool. Cheap."""
    found = residency.cache.count_violations()
    num_held = len(roster.running) + len(residency.departures)
    if residency.cache.num_leases != num_held:
        found.append(f"{residency.cache.num_leases} leases for {num_held} running or departing")
    if residency.table.num_taken != num_held:
        found.append(f"{residency.table.num_taken} slots for {num_held} running or departing")
    return found


def _broken_containers(roster: Roster) -> Iterator[str]:
    waiting, running = list(roster.waiting), roster.running
    if any(req.state is not ReqState.WAITING for req in waiting):
        yield "a request in the waiting queue is not WAITING"
    if any(req.slot is not None or req.lease is not None or req.num_kv for req in waiting):
        yield "a waiting request holds a slot, a lease or KV"
    if any(not req.is_running for req in running):
        yield "a request among the running is not running"
    if [req.order for req in running] != sorted(req.order for req in running):
        yield "the running requests are not sorted by age"
    held = sorted(req.order for req in (*waiting, *running))
    if held != sorted(req.order for req in roster.live()):
        yield "the live requests are not exactly those in the containers"


def _broken_holdings(req: Req, residency: Residency) -> Iterator[str]:
    slot, lease = req.held()
    page_size = residency.cache.page_size
    pages = lease.pages(0, lease.num_pages)
    row = residency.table.row(slot, lease.num_pages)
    if not np.array_equal(row[: lease.num_synced], pages[: lease.num_synced]):
        yield f"slot {slot}: the row told to the runner differs from the lease"
    if not lease.num_tree * page_size <= req.num_kv <= lease.num_pages * page_size:
        yield f"slot {slot}: {req.num_kv} positions, pages {lease.num_tree}..{lease.num_pages}"
    if residency.book.num_room[slot] != lease.num_pages * page_size:
        yield f"slot {slot}: room of {residency.book.num_room[slot]} in {lease.num_pages} pages"
    is_decoding = req.state is ReqState.DECODING
    # After an iteration at most one step is in flight, so a row of the slot is in flight or not.
    num_unknown = int(is_decoding and residency.book.is_in_flight(slot))
    if req.num_kv >= req.num_tokens + num_unknown:
        yield f"slot {slot}: KV of {req.num_kv} positions for {req.num_tokens} tokens"
    if is_decoding and req.num_kv != req.num_tokens + num_unknown - 1:
        yield f"slot {slot}: decoding with {req.num_tokens - req.num_kv} tokens to compute"
    if req.num_tokens > req.max_tokens:
        yield f"slot {slot}: {req.num_tokens} tokens, the limit is {req.max_tokens}"
