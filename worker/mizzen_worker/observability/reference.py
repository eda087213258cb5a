"""Owns the metric reference of the documentation, written from the table of names. Pure.

``python -m mizzen_worker.observability.reference > docs/reference/metrics.md`` writes it again.
"""

import sys

from mizzen_worker.observability.metric_names import METRICS

_PROCESS_TO_TITLE = {
    "front": "Front process (public port `/metrics`, and the admin port)",
    "rank": "Worker rank (admin port `/metrics`)",
    "group": "Leader of a tensor-parallel group (admin port `/metrics`)",
    "follower": "Another rank of a tensor-parallel group (admin port `/metrics`)",
    "controller": "Controller of a worker with several ranks (admin port `/metrics`)",
    "launcher": "Launcher (admin port `/metrics`)",
    "fetch": "`mizzen fetch-weights` (port of `--metrics-port`)",
}


def metric_reference() -> str:
    """Write the page."""
    lines = [
        "# Metrics",
        "",
        "Prometheus text. The admin port of a pod shows the metrics of all its processes.",
        "This page is generated:",
        "`python -m mizzen_worker.observability.reference > docs/reference/metrics.md`.",
    ]
    for process, title in _PROCESS_TO_TITLE.items():
        lines += ["", f"## {title}", "", "| name | kind | labels | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{metric.name}` | {metric.kind.value} | {', '.join(metric.labels) or '-'} | "
            f"{metric.meaning} |"
            for metric in METRICS
            if metric.process == process
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metric_reference())
