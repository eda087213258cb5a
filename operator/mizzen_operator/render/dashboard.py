"""Owns the Grafana dashboard of a service: its panels and what each asks Prometheus.

Does not own metric names (``worker_contract``) nor the ConfigMap around it (``monitoring``).
"""

import json
from dataclasses import dataclass
from typing import Any

from mizzen_operator.render.promql import LABEL_POD, LABEL_ROLE, series
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash
from mizzen_operator.worker_contract import (
    METRIC_CACHED_TOKENS,
    METRIC_GENERATED_TOKENS,
    METRIC_HTTP_REQUESTS,
    METRIC_INTER_TOKEN_LATENCY,
    METRIC_KV_CACHED,
    METRIC_KV_CAPACITY,
    METRIC_KV_USED,
    METRIC_LIVE_REQUESTS,
    METRIC_PREFILL_TOKENS,
    METRIC_PROCESS_RESTARTS,
    METRIC_PROCESS_UP,
    METRIC_QUEUE_AGE,
    METRIC_QUEUED_REQUESTS,
    METRIC_REQUEST_LATENCY,
    METRIC_REQUESTS_FINISHED,
    METRIC_REQUESTS_RESUMED,
    METRIC_RETRACTIONS,
    METRIC_RUNNING_REQUESTS,
    METRIC_STEP_SECONDS,
    METRIC_STEPS,
    METRIC_TIME_TO_FIRST_TOKEN,
    METRIC_WORKERS_ATTACHED,
)

SCHEMA_VERSION = 39
RATE_WINDOW = "$__rate_interval"
"""Grafana's own: at least four scrapes, and no less than a pixel."""
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_POD_LEGEND = f"{{{{{LABEL_POD}}}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression and the name of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart over time; ``unit`` is Grafana's name of it."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""


def dashboard_json(resolved: Resolved) -> str:
    """The dashboard as Grafana reads it."""
    made = {
        "uid": f"mizzen-{canonical_hash(_title(resolved))[:16]}",
        "title": _title(resolved),
        "tags": ["mizzen"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_placed(panel, index) for index, panel in enumerate(panels(resolved))],
    }
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def panels(resolved: Resolved) -> tuple[Panel, ...]:
    """All panels, row by row: what clients see, what workers do, memory and failures."""
    return (*_seen_by_clients(resolved), *_done_by_workers(resolved), *_memory_and_health(resolved))


def _title(resolved: Resolved) -> str:
    return f"Mizzen {resolved.namespace}/{resolved.name}"


def _placed(panel: Panel, index: int) -> dict[str, Any]:
    row, column = divmod(index, _PER_ROW)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _seen_by_clients(resolved: Resolved) -> tuple[Panel, ...]:
    ended = series(resolved, METRIC_REQUESTS_FINISHED)
    answers = series(resolved, METRIC_HTTP_REQUESTS)
    return (
        Panel(
            title="Requests ended per second, by how",
            unit="reqps",
            queries=(Query(expr=_rate(ended, by="reason"), legend="{{reason}}"),),
        ),
        Panel(
            title="HTTP answers per second, by status",
            unit="reqps",
            queries=(Query(expr=_rate(answers, by="status"), legend="{{status}}"),),
        ),
        Panel(
            title="Requests alive",
            unit="short",
            description="Accepted and not ended, whether they run, wait or are resumed.",
            queries=(
                Query(expr=_sum(series(resolved, METRIC_LIVE_REQUESTS)), legend="alive"),
                Query(expr=_sum(series(resolved, METRIC_RUNNING_REQUESTS)), legend="running"),
                Query(expr=_sum(series(resolved, METRIC_QUEUED_REQUESTS)), legend="queued"),
            ),
        ),
        _quantiles(resolved, "Time to first token", METRIC_TIME_TO_FIRST_TOKEN),
        _quantiles(resolved, "Time between tokens", METRIC_INTER_TOKEN_LATENCY),
        _quantiles(resolved, "Time of whole requests", METRIC_REQUEST_LATENCY),
    )


def _done_by_workers(resolved: Resolved) -> tuple[Panel, ...]:
    cached = _rate(series(resolved, METRIC_CACHED_TOKENS))
    computed = _rate(series(resolved, METRIC_PREFILL_TOKENS))
    seconds = _rate(series(resolved, METRIC_STEP_SECONDS), by=LABEL_POD)
    steps = _rate(series(resolved, METRIC_STEPS), by=LABEL_POD)
    return (
        Panel(
            title="Tokens per second",
            unit="short",
            queries=(
                Query(expr=_rate(series(resolved, METRIC_GENERATED_TOKENS)), legend="generated"),
                Query(expr=computed, legend="prompt, computed"),
                Query(expr=cached, legend="prompt, from the prefix cache"),
            ),
        ),
        Panel(
            title="Share of prompt tokens from the prefix cache",
            unit="percentunit",
            queries=(Query(expr=f"{cached} / ({cached} + {computed})", legend="cached"),),
        ),
        Panel(
            title="Mean time of a step",
            unit="s",
            queries=(Query(expr=f"{seconds} / {steps}", legend=_POD_LEGEND),),
        ),
        Panel(
            title="Oldest waiting request",
            unit="s",
            queries=(
                Query(
                    expr=f"max by ({LABEL_POD}) ({series(resolved, METRIC_QUEUE_AGE)})",
                    legend=_POD_LEGEND,
                ),
            ),
        ),
    )


def _memory_and_health(resolved: Resolved) -> tuple[Panel, ...]:
    capacity = _sum(series(resolved, METRIC_KV_CAPACITY), by=LABEL_POD)
    used = _sum(series(resolved, METRIC_KV_USED), by=LABEL_POD)
    cached = _sum(series(resolved, METRIC_KV_CACHED), by=LABEL_POD)
    restarts = series(resolved, METRIC_PROCESS_RESTARTS)
    return (
        Panel(
            title="KV memory in use by requests",
            unit="percentunit",
            queries=(Query(expr=f"{used} / {capacity}", legend=_POD_LEGEND),),
        ),
        Panel(
            title="KV memory held by the prefix cache",
            unit="percentunit",
            description="In use by requests or not; what is not is given up when it is needed.",
            queries=(Query(expr=f"{cached} / {capacity}", legend=_POD_LEGEND),),
        ),
        Panel(
            title="Requests put back or moved, per second",
            unit="reqps",
            queries=(
                Query(
                    expr=_rate(series(resolved, METRIC_RETRACTIONS)),
                    legend="put back for lack of KV memory",
                ),
                Query(
                    expr=_rate(series(resolved, METRIC_REQUESTS_RESUMED)),
                    legend="went on at another worker",
                ),
            ),
        ),
        Panel(
            title="Workers attached to each front",
            unit="short",
            queries=(
                Query(
                    expr=_sum(series(resolved, METRIC_WORKERS_ATTACHED), by=LABEL_POD),
                    legend=_POD_LEGEND,
                ),
            ),
        ),
        Panel(
            title="Processes up and restarted",
            unit="short",
            queries=(
                Query(
                    expr=_sum(series(resolved, METRIC_PROCESS_UP), by=LABEL_ROLE),
                    legend=f"up: {{{{{LABEL_ROLE}}}}}",
                ),
                Query(expr=_sum(restarts, by=LABEL_POD), legend=f"restarts: {_POD_LEGEND}"),
            ),
        ),
    )


def _quantiles(resolved: Resolved, title: str, histogram: str) -> Panel:
    buckets = _rate(series(resolved, f"{histogram}_bucket"), by="le")
    return Panel(
        title=title,
        unit="s",
        queries=tuple(
            Query(expr=f"histogram_quantile({share}, {buckets})", legend=name)
            for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
        ),
    )


def _sum(selector: str, *, by: str = "") -> str:
    return f"sum by ({by}) ({selector})" if by else f"sum({selector})"


def _rate(selector: str, *, by: str = "") -> str:
    return _sum(f"rate({selector}[{RATE_WINDOW}])", by=by)
