"""Owns the OpenTelemetry implementation of ``Tracer``; imported only where tracing is on."""

import logging
from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mizzen_worker.observability.tracing import Attributes, TraceSettings

logger = logging.getLogger(__name__)

_PATH = "/v1/traces"
_OF_THE_SENDER = OTLPSpanExporter.__module__
_OF_THE_QUEUE = "opentelemetry.sdk._shared_internal"


class _Hush(logging.Filter):
    """Keeps what the SDK would say of every attempt: all of the sender, of the queue in outages."""

    def __init__(self) -> None:
        super().__init__()
        self.is_outage = False
        self.first_words = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is to be written."""
        if record.name == _OF_THE_QUEUE:
            return not self.is_outage
        self.first_words = self.first_words or record.getMessage()
        return False


class SpanSender(SpanExporter):
    """Sends spans, and says once that a receiver takes none and once that it takes them again."""

    def __init__(self, endpoint: str, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)
        self._hush = _Hush()
        for name in (_OF_THE_SENDER, _OF_THE_QUEUE):
            logging.getLogger(name).addFilter(self._hush)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; what cannot be sent is lost."""
        self._hush.first_words = ""
        result = self._exporter.export(spans)
        was_outage = self._hush.is_outage
        self._hush.is_outage = result is not SpanExportResult.SUCCESS
        if self._hush.is_outage and not was_outage:
            logger.warning(
                "--trace-endpoint: %s takes no spans; they are lost until it does: %s",
                self._endpoint,
                self._hush.first_words,
            )
        elif was_outage and not self._hush.is_outage:
            logger.info("--trace-endpoint: %s takes spans again", self._endpoint)
        return result

    def end_outage_wait(self) -> None:
        """Try no more where nothing is taken: the end of a process must not wait for it."""
        if self._hush.is_outage:
            self._exporter.shutdown()

    def shutdown(self) -> None:
        """Give the connection and the SDK's voice back."""
        self._exporter.shutdown()
        for name in (_OF_THE_SENDER, _OF_THE_QUEUE):
            logging.getLogger(name).removeFilter(self._hush)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


class OtlpSpan:
    """Implements ``Span``."""

    def __init__(self, span: trace.Span, propagator: TraceContextTextMapPropagator) -> None:
        self._span = span
        self._propagator = propagator

    @property
    def traceparent(self) -> str:
        """See ``Span``."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=trace.set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def end(self, attributes: Attributes) -> None:
        """See ``Span``."""
        self._span.set_attributes(dict(attributes))
        self._span.end()


class OtlpTracer:
    """Implements ``Tracer``."""

    def __init__(
        self,
        settings: TraceSettings,
        *,
        process: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "mizzen", "mizzen.process": process}),
            sampler=ParentBased(TraceIdRatioBased(settings.sampling)),
            shutdown_on_exit=False,
        )
        endpoint = settings.endpoint.rstrip("/")
        endpoint = endpoint if endpoint.endswith(_PATH) else endpoint + _PATH
        self._sender = SpanSender(endpoint, timeout_s=5)
        self._provider.add_span_processor(
            BatchSpanProcessor(self._sender, schedule_delay_millis=500)
        )
        self._tracer = self._provider.get_tracer("mizzen")
        self._propagator = TraceContextTextMapPropagator()
        self._offset_s = wall_clock() - clock()

    def begin(self, name: str, *, traceparent: str) -> OtlpSpan:
        """See ``Tracer``."""
        kind = trace.SpanKind.SERVER
        span = self._tracer.start_span(name, context=self._above(traceparent), kind=kind)
        return OtlpSpan(span, self._propagator)

    def note(
        self, name: str, begun_s: float, ended_s: float, *, traceparent: str, attributes: Attributes
    ) -> None:
        """See ``Tracer``."""
        span = self._tracer.start_span(
            name,
            context=self._above(traceparent),
            attributes=dict(attributes),
            start_time=self._nanoseconds(begun_s),
        )
        span.end(self._nanoseconds(ended_s))

    def close(self) -> None:
        """See ``Tracer``."""
        self._sender.end_outage_wait()
        self._provider.shutdown()

    def _above(self, traceparent: str) -> Context:
        carrier = {"traceparent": traceparent} if traceparent else {}
        return self._propagator.extract(carrier)

    def _nanoseconds(self, time_s: float) -> int:
        return int((time_s + self._offset_s) * 1e9)
