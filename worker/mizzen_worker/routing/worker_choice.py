"""Owns which worker a request goes to; owns no connections and no load. Pure.

Each worker that may take it has a price in tokens: what it would have to compute of the prompt,
plus what is ahead in its queue, plus a share for each request that runs beside it. The cheapest
takes it. Prices that differ by less than a request are equal: among those, rendezvous hashing of
the prompt's beginning decides, so that processes that know nothing of each other choose alike.

Guards: a worker where requests wait for a place is taken only when they wait everywhere, and one
that is busier than the least busy by more than ``IMBALANCE`` of what runs at once is left out,
whatever its cache may save.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from mizzen_worker.routing.prefix_memory import PrefixMemory, PromptPrefix

RUNNING_TOKENS = 128
"""Price of a running request: about what it still generates, each step beside the new one."""
IMBALANCE = 0.5
"""Share of the requests that run at once by which a cached prefix may outweigh load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What choosing needs of one worker.

    ``num_live`` counts requests there, running or queued, ours and others'; ``queued_tokens`` are
    known tokens still to be computed, those just sent included.
    """

    address: str
    num_live: int
    queued_tokens: int
    max_running: int
    is_accepting: bool
    resume_identity: str

    @property
    def load(self) -> float:
        """Live requests relative to what runs at once; from 1 on a new one waits for a place."""
        return self.num_live / max(1, self.max_running)


def choose_worker(
    workers: Iterable[WorkerView],
    *,
    prefix: PromptPrefix,
    memory: PrefixMemory,
    resume_identity: str | None = None,
    excluded: Iterable[str] = (),
) -> str | None:
    """Choose an address; None when nobody may take the request.

    ``resume_identity`` is set for a request that began somewhere: only equal workers go on with
    it.
    """
    shunned = frozenset(excluded)
    able = [
        worker
        for worker in workers
        if worker.is_accepting
        and worker.address not in shunned
        and resume_identity in {None, worker.resume_identity}
    ]
    if not able:
        return None
    least_load = min(worker.load for worker in able)
    most_load = max(least_load, min(1 - 1e-9, least_load + IMBALANCE))
    price_by_address = {
        worker.address: _price(worker, prefix, memory)
        for worker in able
        if worker.load <= most_load
    }
    enough = min(price_by_address.values()) + RUNNING_TOKENS
    return min(
        (address for address, price in price_by_address.items() if price < enough),
        key=lambda address: _score(prefix.key, address),
    )


def _price(worker: WorkerView, prefix: PromptPrefix, memory: PrefixMemory) -> int:
    num_new = prefix.num_tokens - memory.num_cached(worker.address, prefix)
    return num_new + worker.queued_tokens + worker.num_live * RUNNING_TOKENS


def _score(key: bytes, address: str) -> bytes:
    return hashlib.blake2b(address.encode(), key=key, digest_size=8).digest()
