"""Owns which worker a request goes to; owns no connections. Pure.

Least loaded, with prefix affinity: requests whose prompts begin alike prefer the same worker, found
by rendezvous hashing so that a worker that comes or goes moves only its own share. Affinity gives
way when the preferred worker is busier than the least busy one by more than a slack.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mizzen_worker.contracts.ids import TokenId

AFFINITY_TOKENS = 128
"""Prompts that agree on so many tokens are taken to share a prefix worth keeping together."""
AFFINITY_SLACK = 0.25
"""Share of a worker's running capacity that affinity may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What choosing needs of one worker; ``num_live`` counts requests there, ours and others'."""

    address: str
    num_live: int
    max_running: int
    is_accepting: bool
    resume_identity: str

    @property
    def load(self) -> float:
        """Live requests relative to what runs at once; above 1 means queueing."""
        return self.num_live / max(1, self.max_running)


def prefix_key(prompt_ids: Sequence[TokenId]) -> bytes:
    """Digest the beginning of a prompt."""
    head = ",".join(map(str, prompt_ids[:AFFINITY_TOKENS]))
    return hashlib.blake2b(head.encode(), digest_size=8).digest()


def choose_worker(
    workers: Iterable[WorkerView],
    *,
    key: bytes,
    resume_identity: str | None,
    excluded: Iterable[str] = (),
) -> str | None:
    """Choose an address; None when nobody may take the request.

    ``resume_identity`` is set for a request that already has tokens: only equal workers go on with
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
    least = min(able, key=lambda worker: (worker.load, _score(key, worker.address)))
    preferred = min(able, key=lambda worker: _score(key, worker.address))
    if preferred.load <= least.load + AFFINITY_SLACK and preferred.load < 1:
        return preferred.address
    return least.address


def _score(key: bytes, address: str) -> bytes:
    return hashlib.blake2b(address.encode(), key=key, digest_size=8).digest()
