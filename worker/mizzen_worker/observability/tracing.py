"""Owns spans of the request path on their way to an OTLP receiver; owns no moment of a request.

OpenTelemetry is imported when tracing is on, and never otherwise. Attributes follow OpenTelemetry's
semantic conventions for HTTP and for generative AI. Spans leave in a thread of the exporter's own;
a receiver that is slow or gone costs spans, never requests.
"""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from mizzen_worker.contracts.errors import ConfigError

Attributes = Mapping[str, str | int | float | tuple[str, ...]]


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans go, and the share of requests that are traced where no client has decided."""

    endpoint: str
    sampling: float


class Span(Protocol):
    """One stretch of time that has begun."""

    @property
    def traceparent(self) -> str:
        """Give its place in the trace, for those below it."""
        ...

    def end(self, attributes: Attributes) -> None:
        """End it now."""
        ...


class Tracer(Protocol):
    """Makes spans of one process; times are of the clock it was made with."""

    def begin(self, name: str, *, traceparent: str) -> Span:
        """Begin a span now, below the one that ``traceparent`` names, if it names one."""
        ...

    def note(
        self, name: str, begun_s: float, ended_s: float, *, traceparent: str, attributes: Attributes
    ) -> None:
        """Tell a span that is over."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def check_tracing() -> None:
    """Raise ``ConfigError`` where what traces need is not installed."""
    names = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    for name in names:
        try:
            is_there = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            msg = (
                f"--trace-endpoint: needs the package {name}, which is not installed; install"
                " mizzen[tracing] or leave the flag out"
            )
            raise ConfigError(msg)


def make_tracer(
    settings: TraceSettings | None,
    *,
    process: str,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> Tracer | None:
    """Make the tracer of a process; None where tracing is off."""
    if settings is None:
        return None
    from mizzen_worker.observability.otlp import OtlpTracer  # noqa: PLC0415 - optional dependency

    return OtlpTracer(settings, process=process, clock=clock, wall_clock=wall_clock)
