"""Owns which requests are live and in which container; owns no slot, page or state of theirs.

Invariants (S2): a live request is in the waiting queue or among the running, never both;
``running`` is sorted by age. Request ids are unique among the live.
"""

import bisect
import heapq

from mizzen_worker.contracts.ids import PeerId, RequestId
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.waiting_queue import WaitingQueue


class Roster:
    """Every live request."""

    def __init__(self, waiting: WaitingQueue) -> None:
        self.waiting = waiting
        self.running: list[Req] = []
        self._by_id: dict[RequestId, Req] = {}
        # Invariant: holds every live deadline; entries of ended requests go when they outnumber.
        self._deadlines: list[tuple[float, int, RequestId]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def live(self) -> list[Req]:
        """Copy the list of live requests, in the order of arrival."""
        return list(self._by_id.values())

    def get(self, request_id: RequestId) -> Req | None:
        """Find a live request."""
        return self._by_id.get(request_id)

    def of_peer(self, peer: PeerId) -> list[Req]:
        """List a peer's live requests."""
        return [req for req in self._by_id.values() if req.peer == peer]

    def num_tokens_to_prefill(self) -> int:
        """Count known tokens without KV; of those that wait, what is cached is not looked up."""
        return self.waiting.num_tokens + sum(
            req.num_tokens - req.num_kv for req in self.running if req.state is ReqState.PREFILLING
        )

    def add(self, req: Req) -> None:
        """Take in a new request; it waits."""
        self._by_id[req.request_id] = req
        self.waiting.add(req)
        if req.deadline is not None:
            heapq.heappush(self._deadlines, (req.deadline, req.order, req.request_id))
            self._drop_stale_deadlines()

    def admit(self, req: Req) -> None:
        """Move from waiting to running."""
        self.waiting.remove(req)
        bisect.insort(self.running, req, key=_age)

    def retract(self, req: Req) -> None:
        """Move from running to waiting, at its old age."""
        self._remove_running(req)
        self.waiting.add(req)

    def remove(self, req: Req) -> None:
        """Forget a request that is about to end; call before its state changes."""
        del self._by_id[req.request_id]
        if req.state is ReqState.WAITING:
            self.waiting.remove(req)
        else:
            self._remove_running(req)

    def take_expired(self, now: float) -> list[Req]:
        """List live requests whose deadline has passed; each is listed once."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, order, request_id = heapq.heappop(self._deadlines)
            req = self._by_id.get(request_id)
            if req is not None and req.order == order:
                expired.append(req)
        return expired

    def _drop_stale_deadlines(self) -> None:
        if len(self._deadlines) <= 2 * len(self._by_id) + 64:
            return
        self._deadlines = [
            (deadline, order, request_id)
            for deadline, order, request_id in self._deadlines
            if (req := self._by_id.get(request_id)) is not None and req.order == order
        ]
        heapq.heapify(self._deadlines)

    def _remove_running(self, req: Req) -> None:
        del self.running[bisect.bisect_left(self.running, _age(req), key=_age)]


def _age(req: Req) -> int:
    return req.order
