"""Owns the end of every request, whatever the reason; decides for none of them.

Invariant: container, slot, lease, state and the one terminal event change together here, so a
request that ended holds nothing and has been answered exactly once (a lost peer: not at all).
"""

import logging
from collections.abc import Callable

from mizzen_worker.contracts.messages import HandBackCause
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.scheduler.recent import EndedRequest
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.state import SchedulerState

logger = logging.getLogger(__name__)

_BY_ITSELF = frozenset({FinishKind.STOP, FinishKind.LENGTH})


class Ending:
    """Ends requests of one scheduler."""

    def __init__(self, state: SchedulerState, *, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock

    def finish(self, req: Req, reason: FinishReason) -> None:
        """End with ``Finished``. KV of a request that ended by itself stays for later ones.

        Of an aborted one only what its checkpoints cached stays: tokens after a stop string, which
        only the detokenizer can see, never enter the tree.
        """
        is_by_itself = reason.kind in _BY_ITSELF
        if is_by_itself:
            self._state.prediction.observe(req.num_output)
        self._leave(req, ReqState.FINISHED, is_cached=is_by_itself)
        self._note(req, reason.kind)
        self._state.counters.finished_requests[reason.kind] += 1
        self._state.output.report_finished(req, reason)

    def hand_back(
        self, req: Req, cause: HandBackCause, *, retry_after_s: float | None = None
    ) -> None:
        """End with ``HandBack``: the request goes on elsewhere."""
        self._leave(req, ReqState.HANDED_BACK, is_cached=True)
        self._note(req, None)
        self._state.counters.handed_back_requests += 1
        self._state.output.report_handed_back(req, cause, retry_after_s)

    def abandon(self, req: Req) -> None:
        """End without a word: the peer is gone."""
        self._leave(req, ReqState.FINISHED, is_cached=False)
        self._note(req, FinishKind.ABORT)
        self._state.counters.finished_requests[FinishKind.ABORT] += 1

    def _note(self, req: Req, kind: FinishKind | None) -> None:
        logger.debug(
            "request ended",
            extra={
                "request_id": req.log_id,
                "engine_request_id": req.request_id,
                "kind": "handed back" if kind is None else kind.value,
            },
        )
        self._state.recent.ended.append(
            EndedRequest(
                log_id=req.log_id,
                traceparent=req.traceparent,
                kind=kind,
                arrived_at=req.arrived_at,
                started_at=req.started_at,
                first_token_at=req.first_token_at,
                ended_at=self._clock(),
                num_prompt=req.num_prompt,
                num_cached=req.num_cached or 0,
                num_output=req.num_output,
            )
        )

    def _leave(self, req: Req, terminal: ReqState, *, is_cached: bool) -> None:
        self._state.output.report_tokens(req)
        self._state.roster.remove(req)
        self._state.residency.end(req, terminal, is_cached=is_cached)
