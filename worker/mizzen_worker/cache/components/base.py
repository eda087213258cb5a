"""Owns the hooks that one kind of cached state answers; owns no node, no pool and no tree.

A component is policy: what a value is, where a prefix is usable, which nodes a lock covers, what
becomes of values when edges split or meet. Values are opaque int32 arrays of *units* (pages, state
slots). Component 0 of a tree is its backbone: one unit per page, a value on every node, usable up
to any page, locked up to the root; its eviction removes pages from the tree. All hooks are pure.
"""

from dataclasses import dataclass
from typing import Protocol

from mizzen_worker.contracts.batch import Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Part of an insert: pages [start, end) of the ``total`` that an incoming value covers."""

    start: int
    end: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a node keeps where it already existed, and the incoming units nobody needs."""

    kept: Int32Array | None
    freed: Int32Array


class MatchWalk(Protocol):
    """One lookup, told about each edge from the root down."""

    def usable(self, value: Int32Array | None, num_pages: int, num_matched: int) -> bool:
        """Tell whether a prefix may end ``num_matched`` pages into this edge of ``num_pages``."""
        ...


class LockWalk(Protocol):
    """One lock, told about each edge from the locked node up."""

    def covers(self, num_pages: int) -> bool:
        """Tell whether the edge of ``num_pages`` is covered; the first False ends the walk."""
        ...


class Component(Protocol):
    """One kind of state on the nodes of a tree."""

    @property
    def name(self) -> str:
        """Identify the component in actions; unique in its tree."""
        ...

    def start_match(self) -> MatchWalk | None:
        """Begin a lookup; None where every place will do, so that nobody asks."""
        ...

    def start_lock(self) -> LockWalk | None:
        """Begin a lock; None where it covers the whole path to the root."""
        ...

    def split(self, value: Int32Array, at_page: int) -> tuple[Int32Array | None, Int32Array | None]:
        """Divide a node's value at ``at_page`` of its edge: (upper, lower). Units are conserved."""
        ...

    def part(self, incoming: Int32Array, span: Span) -> Int32Array | None:
        """Choose what of the incoming value belongs to ``span``. Parts tile the incoming value."""
        ...

    def merge(self, existing: Int32Array | None, incoming: Int32Array) -> Merged:
        """Decide what an existing node keeps when an insert brings ``incoming`` for its edge."""
        ...
