"""Owns the alerts of a service: when each fires and what it tells.

Does not own metric names (``worker_contract``) nor the object around the rules (``monitoring``).
Invariants: each alert is true whenever it fires, says what to look at, and is silent for a service
that nobody uses; none speaks of a service that is stopped or scaled to zero.
"""

from dataclasses import dataclass
from typing import Any

from mizzen_operator.render.promql import LABEL_POD, identity, series
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import (
    METRIC_GENERATED_TOKENS,
    METRIC_HTTP_REQUESTS,
    METRIC_KV_CAPACITY,
    METRIC_KV_USED,
    METRIC_PREFILL_TOKENS,
    METRIC_PROCESS_RESTARTS,
    METRIC_PROCESS_UP,
    METRIC_QUEUE_AGE,
    METRIC_QUEUED_REQUESTS,
    METRIC_REQUESTS_FINISHED,
    METRIC_RETRACTIONS,
    METRIC_RUNNING_REQUESTS,
    METRIC_STEPS,
    METRIC_TIME_TO_FIRST_TOKEN,
    METRIC_WORKERS_ATTACHED,
    PATH_LIVE,
    PATH_METRICS,
)

CRITICAL = "critical"
WARNING = "warning"
_BY_POD = f"sum by ({LABEL_POD}) "
_POD = f"{{{{ $labels.{LABEL_POD} }}}}"
_SECONDS = '{{ printf "%.0f" $value }} s'
_PERCENT = "{{ $value | humanizePercentage }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; ``lasting`` is how long it must hold before it fires."""

    name: str
    expr: str
    lasting: str
    severity: str
    summary: str
    remedy: str

    def rule(self, own_labels: dict[str, str]) -> dict[str, Any]:
        """The entry of a rule group."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity, **own_labels},
            "annotations": {"summary": self.summary, "description": self.remedy},
        }


def alert_rules(resolved: Resolved) -> list[dict[str, Any]]:
    """All alerts of the service as rules."""
    alerts = [
        *(_of_presence(resolved) if resolved.groups else ()),
        _restarts(resolved),
        _queue_wait(resolved),
        _first_token(resolved),
        _kv_full(resolved),
        _failures(resolved),
        _standstill(resolved),
    ]
    return [alert.rule(identity(resolved)) for alert in alerts]


def _name(resolved: Resolved) -> str:
    return f"{resolved.namespace}/{resolved.name}"


def _describe(resolved: Resolved) -> str:
    return f"kubectl -n {resolved.namespace} describe misvc {resolved.name}"


def _of_presence(resolved: Resolved) -> tuple[Alert, ...]:
    """What holds only while worker groups are wanted."""
    attached = series(resolved, METRIC_WORKERS_ATTACHED)
    # Without any front nobody counts; then other pods tell that it is not Prometheus that is away.
    no_front = f"absent({attached}) and on () (count({series(resolved, METRIC_PROCESS_UP)}) > 0)"
    return (
        Alert(
            name="MizzenMetricsMissing",
            expr=f"absent({series(resolved, METRIC_PROCESS_UP)})",
            lasting="10m",
            severity=CRITICAL,
            summary=f"Prometheus gets no metrics of {_name(resolved)}",
            remedy=f"No pod runs, or it cannot be scraped: see `{_describe(resolved)}`, then "
            "whether a NetworkPolicy lets Prometheus in (spec.observability.prometheusNamespace).",
        ),
        Alert(
            name="MizzenNoWorker",
            expr=f"(sum({attached}) == 0) or ({no_front})",
            lasting="2m",
            severity=CRITICAL,
            summary=f"{_name(resolved)} has no front with a ready worker",
            remedy="Requests fail, or wait for a worker and then fail with 503; "
            f"`{_describe(resolved)}` says what is not ready, and why.",
        ),
    )


def _restarts(resolved: Resolved) -> Alert:
    # Counters of a pod outlive its processes, so one that falls means a new container. The series
    # of restarted processes begin with the first restart, of which they show no increase.
    # Ranks of a pod fall together: the largest number counts, not the sum.
    containers = f"max by ({LABEL_POD}) (resets({series(resolved, METRIC_STEPS)}[30m])) > 1"
    processes = f"{_BY_POD}(increase({series(resolved, METRIC_PROCESS_RESTARTS)}[30m])) > 0"
    return Alert(
        name="MizzenRestarts",
        expr=f"({containers}) or ({processes})",
        lasting="0m",
        severity=WARNING,
        summary=f"{_POD} of {_name(resolved)} restarts again and again",
        remedy="A worker's container restarted twice in half an hour, or a process in it did: read "
        f"`kubectl -n {resolved.namespace} logs {_POD} --previous`.",
    )


def _queue_wait(resolved: Resolved) -> Alert:
    return Alert(
        name="MizzenQueueWaitHigh",
        expr=f"max by ({LABEL_POD}) ({series(resolved, METRIC_QUEUE_AGE)}) > 30",
        lasting="10m",
        severity=WARNING,
        summary=f"Requests to {_name(resolved)} wait long for their turn",
        remedy=f"In {_POD} the oldest waiting request is {_SECONDS} old, for 10 minutes above "
        "30 s: raise spec.replicas or send less.",
    )


def _first_token(resolved: Resolved) -> Alert:
    buckets = series(resolved, f"{METRIC_TIME_TO_FIRST_TOKEN}_bucket")
    return Alert(
        name="MizzenFirstTokenSlow",
        expr=f"histogram_quantile(0.95, sum by (le) (rate({buckets}[5m]))) > 10",
        lasting="10m",
        severity=WARNING,
        summary=f"First tokens of {_name(resolved)} come late",
        remedy=f"One request in 20 waits {_SECONDS} or more for its first token: raise "
        "spec.replicas, or look for long prompts.",
    )


def _kv_full(resolved: Resolved) -> Alert:
    used = f"{_BY_POD}({series(resolved, METRIC_KV_USED)})"
    capacity = f"{_BY_POD}({series(resolved, METRIC_KV_CAPACITY)})"
    retracted = f"{_BY_POD}(increase({series(resolved, METRIC_RETRACTIONS)}[10m])) > 0"
    return Alert(
        name="MizzenKVMemoryFull",
        expr=f"({used} / {capacity} > 0.9) and ({retracted})",
        lasting="10m",
        severity=WARNING,
        summary=f"KV memory of {_POD} of {_name(resolved)} is full and requests lose their place",
        remedy=f"{_PERCENT} is in use and requests go back to the queue for lack of it: raise "
        "spec.replicas or spec.engine.kvTokens, or lower spec.engine.contextLength.",
    )


def _failures(resolved: Resolved) -> Alert:
    ended = series(resolved, METRIC_REQUESTS_FINISHED)
    failed = series(resolved, METRIC_REQUESTS_FINISHED, 'reason="error"')
    # Probes and scrapes are many, and never fail.
    asked = f'route!~"{PATH_METRICS}|{PATH_LIVE}.*"'
    answers = series(resolved, METRIC_HTTP_REQUESTS, asked)
    refused = series(resolved, METRIC_HTTP_REQUESTS, asked, 'status=~"5.."')
    return Alert(
        name="MizzenRequestsFailing",
        expr=f"({_share(failed, ended)} > 0.05) or ({_share(refused, answers)} > 0.05)",
        lasting="5m",
        severity=CRITICAL,
        summary=f"Requests to {_name(resolved)} fail",
        remedy=f"{_PERCENT} end in an error or an HTTP status of 5xx: read the pods' logs, "
        f"`kubectl -n {resolved.namespace} logs -l serving.mizzen.dev/service={resolved.name}`.",
    )


def _share(part: str, whole: str) -> str:
    return f"sum(rate({part}[5m])) / sum(rate({whole}[5m]))"


def _standstill(resolved: Resolved) -> Alert:
    queued = f"{_BY_POD}({series(resolved, METRIC_QUEUED_REQUESTS)})"
    running = f"{_BY_POD}({series(resolved, METRIC_RUNNING_REQUESTS)})"
    made = f"{_BY_POD}(rate({series(resolved, METRIC_GENERATED_TOKENS)}[5m]))"
    read = f"{_BY_POD}(rate({series(resolved, METRIC_PREFILL_TOKENS)}[5m]))"
    return Alert(
        name="MizzenStandstill",
        expr=f"({queued} + {running} > 0) and ({made} + {read} == 0)",
        lasting="5m",
        severity=CRITICAL,
        summary=f"{_POD} of {_name(resolved)} computes nothing while requests wait",
        remedy=f"{{{{ $value }}}} requests wait and no token was computed for 5 minutes: read "
        f"`kubectl -n {resolved.namespace} logs {_POD}`, then delete the pod.",
    )
