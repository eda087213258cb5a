"""Owns what the tree tells its controller to do, as frozen values; does none of it.

Every action is returned once and must be executed once.
"""

from dataclasses import dataclass

from mizzen_worker.contracts.batch import Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Give ``units`` [n] int32 of a component's pool back: no node refers to them any more."""

    component: str
    units: Int32Array


Action = Free
