"""Owns the answers of the tree core, as frozen values."""

from dataclasses import dataclass

from mizzen_worker.cache.actions import Action
from mizzen_worker.contracts.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The longest usable prefix: ``num_pages`` from the root, ending inside or at ``node``."""

    node: NodeId
    num_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """The whole key is cached and ends at ``node``; units the tree did not take are in actions."""

    node: NodeId
    num_new_pages: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """What left: units of the asked component, and what to do about them."""

    num_units: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReceipt:
    """Proof of one lock; ``tops`` says, per component, from which page on it covers the path."""

    receipt_id: int
    node: NodeId
    num_pages: int
    tops: tuple[int, ...]
