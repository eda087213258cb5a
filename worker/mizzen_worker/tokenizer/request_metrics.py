"""Owns what of a request's life is measured; owns no values (``Recorder``) and no requests."""

from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.observability.metric_names import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    INTER_TOKEN_LATENCY,
    LIVE_REQUESTS,
    PROMPT_TOKENS,
    REQUEST_LATENCY,
    REQUESTS_FINISHED,
    REQUESTS_RESUMED,
    TIME_TO_FIRST_TOKEN,
    WORKERS_ATTACHED,
)
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.tokenizer.request_state import FinalOutput, RequestState


class RequestMetrics:
    """Records moments of requests."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def note_tokens(self, state: RequestState, num_new: int, now_s: float) -> None:
        """Note that tokens arrived; times are kept on the state."""
        if state.first_token_s is None:
            state.first_token_s = now_s
            self._recorder.observe(TIME_TO_FIRST_TOKEN, now_s - state.submitted_s)
        elif state.last_token_s is not None:
            gap_s = (now_s - state.last_token_s) / num_new
            self._recorder.observe(INTER_TOKEN_LATENCY, gap_s, num_new)
        state.last_token_s = now_s

    def note_end(self, state: RequestState, final: FinalOutput, now_s: float) -> None:
        """Note a result."""
        self._recorder.observe(REQUEST_LATENCY, now_s - state.submitted_s)
        self._recorder.count(PROMPT_TOKENS, final.usage.prompt_tokens)
        self._recorder.count(COMPLETION_TOKENS, final.usage.completion_tokens)
        self._recorder.count(CACHED_TOKENS, final.usage.cached_tokens)

    def note_finished(self, kind: FinishKind, num_live: int) -> None:
        """Note that a request is gone."""
        self._recorder.count(REQUESTS_FINISHED, 1, kind.value)
        self.note_live(num_live)

    def note_live(self, num_live: int) -> None:
        """Note how many requests are live."""
        self._recorder.set(LIVE_REQUESTS, num_live)

    def note_workers(self, num_attached: int) -> None:
        """Note how many workers are attached."""
        self._recorder.set(WORKERS_ATTACHED, num_attached)

    def note_resumed(self) -> None:
        """Note that a request goes on at another attempt."""
        self._recorder.count(REQUESTS_RESUMED)
