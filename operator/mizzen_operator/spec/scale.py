"""Owns how far a role is scaled: who decides when a service, its role scaler and people differ.

Does not own reading the objects (``planner/scale``). Pure. The one rule: a role scaler is the
truth, except that a value which somebody writes into the service's own field takes its place,
once. A value that stands there still, however often it is applied again, changes nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScale:
    """How far one role is scaled."""

    asked: int
    """Groups, or pods of tokenizers, that are asked for."""
    propagated: int
    """Value of the service's own field that was passed on last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBounds:
    """What a role may be scaled to; both included."""

    lowest: int
    highest: int
    because: str = ""
    """What else than the kind of role limits it, and the way out; empty if nothing does."""

    def granted(self, asked: int) -> int:
        """The nearest allowed number."""
        return min(max(asked, self.lowest), self.highest)


def decided_scale(
    written: int, *, scaler: RoleScale | None, remembered: RoleScale | None
) -> RoleScale:
    """What holds now; ``written`` is the service's own field.

    ``remembered`` is what the last status says. It stands in for a scaler that is not there: one
    that was deleted, or that an earlier release of the operator did not have.
    """
    known = scaler or remembered
    if known is None or known.propagated != written:
        return RoleScale(asked=written, propagated=written)
    return known
