"""Owns what a rank tells its launcher and a trace receiver about the loop; owns no number of it.

Called once a turn and cheap then; once a second it takes what happened and reports.
"""

from collections.abc import Callable

from mizzen_worker.ipc.parent_link import ParentLink, Report
from mizzen_worker.observability import metric_names
from mizzen_worker.observability.recorder import LastTotals, Recorder
from mizzen_worker.observability.samples import Sample
from mizzen_worker.observability.tracing import Attributes, Tracer
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.recent import EndedRequest

_REPORT_S = 1.0
_SMOOTHING = 0.3
"""Weight of the last second in the pace of prefill."""


class Reporter:
    """Reports one loop; the loop's turns are the beats of the process."""

    def __init__(
        self,
        link: ParentLink,
        loop: SchedulerLoop,
        *,
        clock: Callable[[], float],
        tracer: Tracer | None,
        more_metrics: Callable[[], tuple[Sample, ...]] = tuple,
    ) -> None:
        """``more_metrics`` are told with the loop's own."""
        self._link = link
        self._loop = loop
        self._clock = clock
        self._tracer = tracer
        self._more_metrics = more_metrics
        self._recorder = Recorder("rank")
        self._totals = LastTotals(self._recorder)
        self._num_turns = 0
        self._reported_s = 0.0
        self._last_generated = 0
        self._last_prefilled = 0
        self._prefill_tokens_per_s = 0.0

    def turn(self, *, state: str) -> None:
        """Note one turn of the loop."""
        self._num_turns += 1
        now_s = self._clock()
        if now_s - self._reported_s >= _REPORT_S:
            self._report(now_s, state)

    def close(self, *, state: str) -> None:
        """Report what is left."""
        self._report(self._clock(), state)
        if self._tracer is not None:
            self._tracer.close()

    def _report(self, now_s: float, state: str) -> None:
        self._note_pace(now_s)
        self._reported_s = now_s
        self._note_gauges()
        self._note_recent()
        counters = self._loop.counters
        self._totals.set(
            (
                (metric_names.ENGINE_STEPS, counters.steps),
                (metric_names.ENGINE_STEP_SECONDS, counters.step_seconds),
                (metric_names.ENGINE_TOKENS, counters.generated_tokens),
                (metric_names.ENGINE_PREFILL_TOKENS, counters.prefilled_tokens),
                (metric_names.ENGINE_CACHED_TOKENS, counters.cached_tokens),
                (metric_names.ENGINE_RETRACTIONS, counters.retractions),
                (metric_names.ENGINE_PREEMPTIONS, counters.preemptions),
                (metric_names.ENGINE_HANDED_BACK, counters.handed_back_requests),
            )
        )
        self._link.report(
            Report(
                state=state,
                num_beats=self._num_turns,
                num_live=self._loop.num_live,
                metrics=self._recorder.samples() + self._more_metrics(),
            )
        )

    def _note_pace(self, now_s: float) -> None:
        counters = self._loop.counters
        passed_s = max(1e-9, now_s - self._reported_s)
        num_generated = counters.generated_tokens - self._last_generated
        num_prefilled = counters.prefilled_tokens - self._last_prefilled
        self._last_generated = counters.generated_tokens
        self._last_prefilled = counters.prefilled_tokens
        self._recorder.set(metric_names.TOKEN_THROUGHPUT, num_generated / passed_s)
        if num_prefilled:
            pace = num_prefilled / passed_s
            known = self._prefill_tokens_per_s
            self._prefill_tokens_per_s = known + _SMOOTHING * (pace - known) if known else pace

    def _note_gauges(self) -> None:
        load = self._loop.load
        age_s = self._loop.oldest_wait_s
        pace = self._prefill_tokens_per_s
        wait_s = load.queued_tokens / pace if pace else 0.0
        # Requests that wait for a place, not for their prefill, wait at least as long as these did.
        predicted_s = max(wait_s, age_s)
        for metric, value in (
            (metric_names.RUNNING_REQUESTS, load.running_requests),
            (metric_names.QUEUED_REQUESTS, load.queued_requests),
            (metric_names.QUEUED_TOKENS, load.queued_tokens),
            (metric_names.QUEUE_AGE, age_s),
            (metric_names.PREDICTED_TIME_TO_FIRST_TOKEN, predicted_s),
            (metric_names.KV_TOKENS_USED, load.kv_tokens_used),
            (metric_names.KV_TOKENS_CACHED, self._loop.kv_tokens_cached),
            (metric_names.KV_TOKENS_TOTAL, self._loop.capacity.kv_tokens),
        ):
            self._recorder.set(metric, value)

    def _note_recent(self) -> None:
        recent = self._loop.recent
        while recent.ended:
            ended = recent.ended.popleft()
            reason = "handed_back" if ended.kind is None else ended.kind.value
            self._recorder.count(metric_names.ENGINE_FINISHED, 1, reason)
            if ended.started_at is not None:
                self._recorder.observe(metric_names.QUEUE_TIME, ended.started_at - ended.arrived_at)
            if self._tracer is not None and ended.traceparent:
                _trace(self._tracer, ended, reason)
        while recent.steps:
            parts = recent.steps.popleft()
            self._recorder.observe(metric_names.STEP_PLANNING_TIME, parts.planning_s)
            self._recorder.observe(metric_names.STEP_LAUNCH_TIME, parts.launch_s)
            self._recorder.observe(metric_names.STEP_SETTLE_TIME, parts.settle_s)


def _trace(tracer: Tracer, ended: EndedRequest, reason: str) -> None:
    """Tell the stretches of an attempt: in the queue, until its first token, until its end."""
    started_at = ended.ended_at if ended.started_at is None else ended.started_at
    first_at = ended.ended_at if ended.first_token_at is None else ended.first_token_at
    common: Attributes = {"mizzen.request_id": ended.log_id}
    used: Attributes = {
        **common,
        "gen_ai.usage.input_tokens": ended.num_prompt,
        "mizzen.cached_tokens": ended.num_cached,
    }
    result: Attributes = {
        **common,
        "gen_ai.usage.output_tokens": ended.num_output,
        "gen_ai.response.finish_reasons": (reason,),
    }
    stretches = [("queue", ended.arrived_at, started_at, common)]
    if ended.started_at is not None:
        stretches.append(("prefill", started_at, first_at, used))
    if ended.first_token_at is not None:
        stretches.append(("decode", first_at, ended.ended_at, result))
    for name, begun_at, ended_at, attributes in stretches:
        tracer.note(name, begun_at, ended_at, traceparent=ended.traceparent, attributes=attributes)
