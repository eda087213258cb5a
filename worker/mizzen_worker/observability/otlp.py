"""Owns the OpenTelemetry implementation of ``Tracer``; imported only where tracing is on."""

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mizzen_worker.observability.tracing import Attributes, TraceSettings

_PATH = "/v1/traces"


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
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
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
        self._provider.shutdown()

    def _above(self, traceparent: str) -> Context:
        carrier = {"traceparent": traceparent} if traceparent else {}
        return self._propagator.extract(carrier)

    def _nanoseconds(self, time_s: float) -> int:
        return int((time_s + self._offset_s) * 1e9)
