"""A worker's endpoint without a wire: what a test puts in is received, what is sent is kept."""

from collections import deque
from collections.abc import Sequence

from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import ToTokenizer, ToWorker


class RecordingEndpoint:
    """Implements ``WorkerEndpoint`` with unlimited credit and no waiting."""

    def __init__(self) -> None:
        self.inbox: deque[tuple[PeerId, ToWorker]] = deque()
        self.sent: list[tuple[PeerId, ToTokenizer]] = []
        self.newly_lost: list[PeerId] = []
        self.waits: list[float] = []

    def receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        self.waits.append(timeout_s)
        return [self.inbox.popleft() for _ in range(min(max_messages, len(self.inbox)))]

    def send(self, peer: PeerId, message: ToTokenizer) -> None:
        self.sent.append((peer, message))

    def lost_peers(self) -> Sequence[PeerId]:
        lost, self.newly_lost = self.newly_lost, []
        return lost
