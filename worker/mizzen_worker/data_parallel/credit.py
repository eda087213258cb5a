"""Owns how one tokenizer's credit is shared among ranks; owns no messages and no links. Pure.

Every rank has an equal share of what the tokenizer granted when it attached. Invariant: for each
rank, free credit + credit at the rank + events on their way to the tokenizer or unreturned there =
its share; so ranks together never send more than the tokenizer is ready to take.
"""

from collections import deque
from collections.abc import Sequence


class CreditShares:
    """Credit of one tokenizer."""

    def __init__(self, window: int, ranks: Sequence[str]) -> None:
        share = max(1, window // len(ranks))
        self._free = dict.fromkeys(ranks, share)
        self._held = dict.fromkeys(ranks, 0)
        self._forwarded: deque[tuple[str, int]] = deque()

    def grant(self, rank: str) -> int:
        """Give a rank all its free credit; the caller tells it how much that is."""
        amount = self._free[rank]
        self._free[rank] = 0
        self._held[rank] += amount
        return amount

    def note_forwarded(self, rank: str, num_events: int) -> None:
        """Note events that a rank sent and that went on to the tokenizer."""
        self._held[rank] -= num_events
        self._forwarded.append((rank, num_events))

    def note_returned(self, amount: int) -> None:
        """Note that the tokenizer took so many events, in the order they were sent to it."""
        while amount > 0 and self._forwarded:
            rank, num_events = self._forwarded.popleft()
            taken = min(amount, num_events)
            amount -= taken
            self._free[rank] += taken
            if taken < num_events:
                self._forwarded.appendleft((rank, num_events - taken))

    def note_lost(self, rank: str) -> None:
        """Take back what a rank that is gone had not used."""
        self._free[rank] += self._held[rank]
        self._held[rank] = 0
