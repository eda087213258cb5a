"""Owns the orders in which waiting requests may start; pure, over small records.

An order that lets requests overtake is kept fair by age: once a request has waited longer than a
bound, every second place goes to the oldest such request (``take_turns``). So the policy keeps half
of its effect however long the line is, and nobody waits for ever.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from mizzen_worker.contracts.ids import NodeId
from mizzen_worker.contracts.schedule_policy import SchedulePolicy

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What never changes while a request waits. ``order`` is its arrival number: its age."""

    order: int
    priority: int
    max_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """What of a request is cached now: pages, and the tree's nodes from the root down to it."""

    order: int
    num_pages: int
    path: tuple[NodeId, ...]


StandingKey: TypeAlias = Callable[[Standing], tuple[int, int]]


def _by_age(standing: Standing) -> tuple[int, int]:
    return (0, standing.order)


def _by_longest_output(standing: Standing) -> tuple[int, int]:
    return (-standing.max_output, standing.order)


def _by_priority(standing: Standing) -> tuple[int, int]:
    return (-standing.priority, standing.order)


STANDING_KEYS: dict[SchedulePolicy, StandingKey] = {
    SchedulePolicy.FCFS: _by_age,
    SchedulePolicy.LPM: _by_age,
    SchedulePolicy.DFS_WEIGHT: _by_age,
    SchedulePolicy.LOF: _by_longest_output,
    SchedulePolicy.PRIORITY: _by_priority,
}
"""Sort keys of the whole line, smallest first; distinct per request because age is."""


def longest_prefix_first(prefixes: Sequence[CachedPrefix]) -> list[int]:
    """Give positions in ``prefixes``: most cached pages first, the oldest among equals."""
    return sorted(range(len(prefixes)), key=lambda i: (-prefixes[i].num_pages, prefixes[i].order))


def depth_first(prefixes: Sequence[CachedPrefix], *, current: Collection[NodeId]) -> list[int]:
    """Give positions in ``prefixes`` in the order of a walk down the tree.

    ``current`` is the path where the walk is: it finishes a branch before it leaves it. Else at a
    fork the branch with most requests goes first, then the one with the oldest node; requests that
    end at the fork itself come after its branches, the oldest first.
    """
    weights = Counter(node for prefix in prefixes for node in prefix.path)

    def key(index: int) -> tuple[tuple[tuple[bool, int, int], ...], int]:
        prefix = prefixes[index]
        steps = ((node not in current, -weights[node], int(node)) for node in prefix.path)
        # The last entry sorts behind every branch, whose weight is at least 1.
        return ((*steps, (True, 0, 0)), prefix.order)

    return sorted(range(len(prefixes)), key=key)


def take_turns(
    by_policy: Sequence[Item], by_age: Sequence[Item], *, is_age_first: bool
) -> Iterator[tuple[Item, bool]]:
    """Merge two orders: one of each in turn, each item once; the truth says that age chose it."""
    given: set[int] = set()
    sources = {True: iter(by_age), False: iter(by_policy)}
    is_age = is_age_first
    for _ in range(2 * max(len(by_policy), len(by_age)) + 1):
        item = next((item for item in sources[is_age] if id(item) not in given), None)
        if item is not None:
            given.add(id(item))
            yield item, is_age
        is_age = not is_age
