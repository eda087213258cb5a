"""Owns the orders in which waiting requests may start; pure, over small records.

An order that lets requests overtake is kept fair by age: once a request has waited longer than a
bound, every second place goes to the oldest such request (``take_turns``). So the policy keeps half
of its effect however long the queue is, and nobody waits for ever.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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


Path: TypeAlias = tuple[NodeId, ...]
"""What of a request is cached, as the prefix tree's nodes from below the root down."""
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
"""Sort keys of the whole queue, smallest first; distinct per request because age is."""


def claim(standing: Standing, *, is_overdue: bool) -> tuple[bool, int, int]:
    """Weigh a running request: the greatest is computed first and sent back last.

    So somebody always gets on, and whoever has waited long gets on at last: no starvation.
    """
    return (is_overdue, standing.priority, -standing.order)


def longest_prefix_first(num_cached: Sequence[int]) -> list[int]:
    """Give positions, given how much is cached of each: most first, the earlier among equals."""
    return sorted(range(len(num_cached)), key=lambda index: -num_cached[index])


def depth_first(paths: Sequence[Path], *, current: Path) -> list[int]:
    """Give positions, given where each prefix is, in the order of a walk down the tree.

    ``current`` is the path where the walk is: it finishes a branch before it leaves it. Else at a
    fork the branch with most requests goes first, then the one with the oldest node; requests that
    end at the fork itself come after its branches, the earlier first.
    """
    weights = Counter(node for path in paths for node in path)
    here = frozenset(current)

    def key(index: int) -> tuple[tuple[bool, int, int], ...]:
        steps = ((node not in here, -weights[node], int(node)) for node in paths[index])
        # The last entry sorts behind every branch, whose weight is at least 1.
        return (*steps, (True, 0, 0))

    return sorted(range(len(paths)), key=key)


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
