"""Owns how a request ends: last text, the worker's count, final output, error; owns no attempts.

Invariant: an accepted request ends here exactly once, and is reported to ``forget`` then.
"""

from collections.abc import Callable

from mizzen_worker.contracts.errors import RequestError, WorkerError
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.tokenizer.request_metrics import RequestMetrics
from mizzen_worker.tokenizer.request_state import FinalOutput, Phase, RequestState
from mizzen_worker.tokenizer.text_feed import TextFeed

_COUNT_WAIT_S = 2.0
"""After a stop string, how long to wait for the worker's own count of cached tokens."""

Forget = Callable[[RequestState, FinishKind], None]
"""Takes an ended request out of the live ones."""


class Endings:
    """Ends of every request of a TokenizerManager."""

    def __init__(
        self,
        *,
        texts: TextFeed,
        metrics: RequestMetrics,
        clock: Callable[[], float],
        forget: Forget,
    ) -> None:
        self._texts = texts
        self._metrics = metrics
        self._clock = clock
        self._forget = forget

    def begin(self, state: RequestState, reason: FinishReason) -> None:
        """No token follows: ask for the last text, or fail at once."""
        if reason.kind is FinishKind.ERROR:
            self.fail(state, RequestError(reason.message or "the worker refused the request"))
            return
        state.worker_finish = reason
        state.move(Phase.ENDING, self._clock())
        self._texts.feed(state)

    def finish(self, state: RequestState) -> None:
        """End with what the worker said, or with the stop string that was found."""
        reason = state.worker_finish
        if state.stopped_by is not None:
            self._end(state, state.final_of(FinishKind.STOP, matched=state.stopped_by))
        elif reason is not None:
            final = state.final_of(reason.kind, matched=reason.matched, message=reason.message)
            self._end(state, final)

    def abort(self, state: RequestState, message: str | None) -> None:
        """End at once; no text is waited for."""
        self._texts.close(state)
        self._end(state, state.final_of(FinishKind.ABORT, message=message))

    def fail(self, state: RequestState, error: WorkerError) -> None:
        """End with an error, behind the text that is there."""
        self._texts.close(state)
        state.fail(error, self._clock())
        self._forget(state, FinishKind.ERROR)

    def is_count_overdue(self, state: RequestState, now_s: float) -> bool:
        """Tell whether only the worker's count is missing, and is not waited for any longer."""
        return (
            state.stopped_by is not None
            and state.phase is Phase.ENDING
            and now_s - state.phase_since_s > _COUNT_WAIT_S
        )

    def _end(self, state: RequestState, final: FinalOutput) -> None:
        now_s = self._clock()
        state.finish(final, now_s)
        self._forget(state, final.kind)
        self._metrics.note_end(state, final, now_s)
