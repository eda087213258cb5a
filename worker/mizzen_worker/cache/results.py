"""Owns the values that go into and come out of the tree core, frozen."""

from dataclasses import dataclass

from mizzen_worker.cache.actions import Action
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.ids import NodeId, Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One request's use of a path: when, and how much its priority counts (higher stays longer)."""

    tick: Tick
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The longest usable prefix: ``num_pages`` from the root, ending inside or at ``node``.

    True of the tree at ``epoch``, and of every later one as long as the epoch stays the same.
    """

    node: NodeId
    num_pages: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReceipt:
    """Proof of one lock; ``tops`` says, per component, from which page on it covers the path."""

    receipt_id: int
    node: NodeId
    num_pages: int
    tops: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """The whole key is cached and ends at ``node``; units the tree did not take are in actions."""

    node: NodeId
    num_new_pages: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A lock moved down to the end of what was inserted below it.

    ``receipt`` replaces the old one; ``pages`` are the backbone's from the old end to the new one.
    """

    receipt: LockReceipt
    pages: Int32Array
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """What left: units of the asked component, and what to do about them."""

    num_units: int
    actions: tuple[Action, ...]
