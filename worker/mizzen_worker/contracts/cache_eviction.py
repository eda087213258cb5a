"""Owns the words for the order in which cached pages leave; owns none of the orders."""

import enum


class CacheEviction(enum.Enum):
    """Which pages nobody uses leave first; the value is the option's word."""

    LRU = "lru"
    """Those whose last use is longest ago."""
    LFU = "lfu"
    """Those that fewest requests used; among equals as lru."""
    SLRU = "slru"
    """Those that only one request used, as lru; then the others, as lru."""
    PRIORITY = "priority"
    """Those whose highest request priority is lowest; among equals as lru."""


CACHE_EVICTIONS = tuple(eviction.value for eviction in CacheEviction)
