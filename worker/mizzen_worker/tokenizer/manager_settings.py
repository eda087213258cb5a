"""Owns the limits a TokenizerManager is given; owns no state."""

from dataclasses import dataclass

from mizzen_worker.contracts.ids import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """Limits; ``end_ids`` are the tokens that end a text of this model."""

    max_live_requests: int = 4096
    resume_timeout_s: float = 60.0
    max_lost_workers: int = 3
    """Workers that may die one after the other under a request that gets no token."""
    end_ids: frozenset[TokenId] = frozenset()
