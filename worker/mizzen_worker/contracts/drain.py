"""Owns the two ways to drain, spelled for flags, queries and messages alike; drains nothing."""

import enum


class DrainMode(enum.Enum):
    """What becomes of live requests."""

    HANDBACK = "handback"
    """They go back at once, to continue elsewhere."""
    FINISH = "finish"
    """They run to their end, or to the deadline and then go back."""


DRAIN_MODES = tuple(mode.value for mode in DrainMode)
"""As words; the first is the default."""
