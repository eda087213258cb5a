"""Owns the next step of roll-out and scaling in one: which groups to make, which to remove.

Does not own objects (``render``) nor other children (``plan``). Pure: the same groups give the same
step, and a step that changes nothing is the end.

Invariants, beyond what the world does by itself:
- groups that exist, the leaving ones included, are never more than desired + surge by our making,
  but for lost ones: their node answers no more, and waiting for it would stop everything;
- ready groups are never fewer than min(desired, ready before) - unavailable by our deleting;
- a group of the wanted revision is removed only when there are more of them than desired.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mizzen_operator.planner.groups import Budget, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do with groups now."""

    create: tuple[int, ...] = ()
    """Indices of new groups at the wanted revision."""
    remove: tuple[tuple[Group, str], ...] = ()
    """Groups to delete, each with the reason."""
    waits_for: str = ""
    """What has to happen before the next step; empty when there is no next step or one is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where the steps lead: ``desired`` ready groups of ``revision`` and no others."""

    revision: str
    desired: int
    budget: Budget
    protected: frozenset[str] = frozenset()
    """Names of ready groups of other revisions that something still needs."""
    lost: frozenset[str] = frozenset()
    """Names of leaving groups whose pods should have ended long ago."""


def next_step(groups: Iterable[Group], goal: Goal) -> Step:
    """The next step towards the goal."""
    revision, desired, budget = goal.revision, goal.desired, goal.budget
    existing = list(groups)
    staying = [group for group in existing if not group.is_leaving]
    new = [group for group in staying if group.revision == revision]
    old = [group for group in staying if group.revision != revision]
    surplus = [(group, "scaled down") for group in _victims(new, len(new) - desired)]
    removed_new = {group.name for group, _ in surplus}
    kept = [group for group in new if group.name not in removed_new]
    missing = desired - len(kept)
    held = [group for group in existing if group.name not in goal.lost]
    room = max(0, desired + budget.surge - len(held))
    replaced = _old_to_remove(kept, old, goal, short_of_room=missing - room)
    create = _free_indices(existing, revision, min(missing, room))
    remove = (*surplus, *((group, "replaced by a newer revision") for group in replaced))
    waits_for = "" if create or remove else _waits_for(existing, kept, old, goal)
    return Step(create=create, remove=remove, waits_for=waits_for)


def _old_to_remove(
    kept: list[Group], old: list[Group], goal: Goal, *, short_of_room: int
) -> list[Group]:
    """Groups of other revisions that may go now: all unready ones, ready ones within the budget."""
    unready = [group for group in old if not group.is_ready]
    ready = [group for group in old if group.is_ready]
    num_ready = len(ready) + sum(group.is_ready for group in kept)
    more_than_needed = max(0, num_ready - goal.desired)
    spendable = max(0, num_ready - (goal.desired - goal.budget.unavailable))
    # Unready ones make room first; ready ones are spent only for room that is really needed.
    needed = max(0, short_of_room - len(unready))
    free = [group for group in ready if group.name not in goal.protected]
    return [*unready, *_victims(free, max(more_than_needed, min(spendable, needed)))]


def _victims(groups: list[Group], count: int) -> list[Group]:
    """Unready groups first, then those of the highest index."""
    if count <= 0:
        return []
    ordered = sorted(groups, key=lambda group: (group.is_ready, -group.index, group.name))
    return ordered[:count]


def _free_indices(existing: list[Group], revision: str, count: int) -> tuple[int, ...]:
    """The lowest indices whose name no living or leaving group has."""
    taken = {group.index for group in existing if group.revision == revision}
    free = (index for index in range(len(taken) + max(count, 0)) if index not in taken)
    return tuple(index for index, _ in zip(free, range(max(count, 0)), strict=False))


def _waits_for(existing: list[Group], kept: list[Group], old: list[Group], goal: Goal) -> str:
    unready = [group.name for group in kept if not group.is_ready]
    leaving = [group.name for group in existing if group.is_leaving]
    if leaving and (len(kept) < goal.desired or not old):
        return f"waiting until {', '.join(leaving)} has ended"
    if unready:
        return f"waiting until {', '.join(unready)} is ready"
    return f"waiting until no tokenizer pod needs {old[0].name} any more" if old else ""
