"""Owns what a client is told when no worker keeps its request; owns no state. Pure."""

from mizzen_worker.contracts.errors import (
    InterruptedRequestError,
    OverloadedError,
    UnavailableError,
)
from mizzen_worker.contracts.messages import HandBackCause
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import RequestState


def refusal_of(cause: HandBackCause, *, retry_after_s: float) -> OverloadedError:
    """Give the error for a request that came back before it had begun."""
    if cause is HandBackCause.QUEUE_FULL:
        return OverloadedError("every worker's queue is full", retry_after_s=retry_after_s)
    return UnavailableError("the worker is shutting down", retry_after_s=retry_after_s)


def interruption_of(
    state: RequestState, settings: ManagerSettings, *, now_s: float
) -> InterruptedRequestError | None:
    """Say why a request that waits for a worker is given up, or None while it may go on waiting.

    A request under which worker after worker dies may be the reason: it gets no further one.
    """
    if state.num_lost >= settings.max_lost_workers:
        return InterruptedRequestError(
            f"{state.num_lost} attempts in a row gave nothing: their workers died or left "
            "something out; change the request or send it again later"
        )
    if now_s - state.phase_since_s > settings.resume_timeout_s:
        return InterruptedRequestError(
            f"the worker was lost and no equal one came within {settings.resume_timeout_s:.0f} s; "
            "send the request again"
        )
    return None
