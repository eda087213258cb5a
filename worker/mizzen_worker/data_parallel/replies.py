"""Owns the replies of several ranks to one ``Control`` and what they are together. Pure.

Counts add up; other facts, and whole numbers that are no counts, are told where every rank says the
same. What single ranks say is not lost: it is repeated with the rank's place in front.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mizzen_worker.contracts.messages import Facts, Reply

_NO_COUNTS = frozenset(
    {
        *("context_length", "vocab_size", "page_size", "max_chunk_tokens"),
        "predicted_output_tokens",
    }
)
"""Whole numbers of one request or one page: two ranks do not have twice as much."""


@dataclass(slots=True, kw_only=True)
class _Awaited:
    ranks: tuple[str, ...]
    replies: dict[str, Reply] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.replies) == len(self.ranks)


class AwaitedReplies:
    """Controls of one tokenizer that are not answered yet."""

    def __init__(self) -> None:
        self._awaited: dict[int, _Awaited] = {}

    def expect(self, control_id: int, ranks: Sequence[str]) -> Reply | None:
        """Note who was asked; gives the reply at once where that is nobody."""
        if not ranks:
            return Reply(control_id=control_id, is_ok=False, message="no rank can be asked now")
        self._awaited[control_id] = _Awaited(ranks=tuple(ranks))
        return None

    def take(self, rank: str, reply: Reply) -> Reply | None:
        """Take one rank's reply; gives the reply of all when it is the last."""
        awaited = self._awaited.get(reply.control_id)
        if awaited is None or rank not in awaited.ranks:
            return None
        awaited.replies[rank] = reply
        if not awaited.is_complete:
            return None
        del self._awaited[reply.control_id]
        return merged(reply.control_id, [awaited.replies[one] for one in awaited.ranks])

    def note_lost(self, rank: str) -> Iterable[Reply]:
        """Answer for a rank that is gone; gives the replies that this completes."""
        found: list[Reply] = []
        for control_id, awaited in list(self._awaited.items()):
            if rank in awaited.ranks and rank not in awaited.replies:
                lost = Reply(
                    control_id=control_id, is_ok=False, message="a rank was lost before it answered"
                )
                complete = self.take(rank, lost)
                if complete is not None:
                    found.append(complete)
        return found


def merged(control_id: int, replies: Sequence[Reply]) -> Reply:
    """Make one reply of the replies of all ranks, in their order."""
    failed = [reply.message for reply in replies if not reply.is_ok]
    if failed:
        return Reply(control_id=control_id, is_ok=False, message="; ".join(dict.fromkeys(failed)))
    return Reply(
        control_id=control_id,
        is_ok=True,
        message=replies[0].message,
        facts=_merged_facts([reply.facts for reply in replies]),
    )


def _merged_facts(every: Sequence[Facts]) -> Facts:
    facts: Facts = {}
    for name in dict.fromkeys(name for one in every for name in one):
        values = [one[name] for one in every if name in one]
        counts = [value for value in values if type(value) is int and name not in _NO_COUNTS]
        if len(counts) == len(values):
            facts[name] = sum(counts)
        elif len(set(values)) == 1:
            facts[name] = values[0]
        for place, value in enumerate(values):
            facts[f"rank{place}.{name}"] = value
    return facts
