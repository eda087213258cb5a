"""Owns what a client is told when no worker keeps its request; owns no state. Pure."""

from mizzen_worker.contracts.errors import OverloadedError, UnavailableError
from mizzen_worker.contracts.messages import HandBackCause


def refusal_of(cause: HandBackCause, *, retry_after_s: float) -> OverloadedError:
    """Give the error for a request that came back before it had begun."""
    if cause is HandBackCause.QUEUE_FULL:
        return OverloadedError("every worker's queue is full", retry_after_s=retry_after_s)
    return UnavailableError("the worker is shutting down", retry_after_s=retry_after_s)
