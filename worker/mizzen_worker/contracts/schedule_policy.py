"""Owns the words for the order in which waiting requests may start; owns none of the orders."""

import enum


class SchedulePolicy(enum.Enum):
    """The value is the option's word."""

    FCFS = "fcfs"
    """First come, first served."""
    LPM = "lpm"
    """Longest prefix in the cache first."""
    DFS_WEIGHT = "dfs-weight"
    """Along the prefix tree, branches with most requests first, so that siblings run together."""
    LOF = "lof"
    """Longest output (``max_new_tokens``) first."""
    PRIORITY = "priority"
    """Highest ``Submit.priority`` first, and perhaps at the cost of running ones."""


SCHEDULE_POLICIES = tuple(policy.value for policy in SchedulePolicy)
