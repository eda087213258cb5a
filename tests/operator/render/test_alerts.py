"""Alerts fire when they are true and only then; promtool, where it is there, is the judge."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.documents import resolved

from mizzen_operator.render.alerts import CRITICAL, WARNING, alert_rules
from mizzen_operator.render.dashboard import RATE_WINDOW, panels
from mizzen_operator.render.monitoring import monitoring_objects
from mizzen_operator.render.promql import LABEL_POD, identity

SERVICE = resolved(observability={})
OF_SERVICE = ",".join(f'{label}="{value}"' for label, value in identity(SERVICE).items())
DURATION = re.compile(r"[0-9]+m")
AT_ZERO_SILENT = {"MizzenMetricsMissing", "MizzenNoWorker"}


def promtool(*arguments: str) -> str:
    """Run it and give what it says; the test is skipped, and counted so, where there is none."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("missing: promtool (Debian's package prometheus has it)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rule_file(tmp_path: Path) -> Path:
    (rule,) = [obj for obj in monitoring_objects(SERVICE) if obj["kind"] == "PrometheusRule"]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    return path


def test_every_rule_has_the_shape_of_an_alert() -> None:
    names = [rule["alert"] for rule in alert_rules(SERVICE)]
    assert len(set(names)) == len(names)
    for rule in alert_rules(SERVICE):
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Mizzen[A-Z][A-Za-z]+", rule["alert"])
        assert DURATION.fullmatch(rule["for"])
        assert rule["labels"] == {"severity": rule["labels"]["severity"], **identity(SERVICE)}
        assert rule["labels"]["severity"] in (CRITICAL, WARNING)
        assert set(rule["annotations"]) == {"summary", "description"}


def test_texts_use_only_labels_that_the_expression_keeps() -> None:
    for rule in alert_rules(SERVICE):
        text = " ".join(rule["annotations"].values())
        used = set(re.findall(r"\$labels\.([a-z_]+)", text))
        assert used <= ({LABEL_POD} if f"by ({LABEL_POD})" in rule["expr"] else set())
        assert f"{SERVICE.namespace}/{SERVICE.name}" in rule["annotations"]["summary"]


@pytest.mark.parametrize("spec", [{"replicas": 0}, {"stopped": True}])
def test_a_service_that_shall_not_run_is_not_missed(spec: dict[str, Any]) -> None:
    names = {rule["alert"] for rule in alert_rules(resolved(observability={}, **spec))}
    assert names == {rule["alert"] for rule in alert_rules(SERVICE)} - AT_ZERO_SILENT


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    said = promtool("check", "rules", str(rule_file(tmp_path)))
    assert f"{len(alert_rules(SERVICE))} rules found" in said


def test_prometheus_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [query.expr for panel in panels(SERVICE) for query in panel.queries]
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace(RATE_WINDOW, "5m")}
        for number, expr in enumerate(expressions)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", str(path))


def _series(name: str, values: str, *, pod: str = "a", more: str = "") -> dict[str, str]:
    return {"series": f'{name}{{{OF_SERVICE},pod="{pod}"{more}}}', "values": values}


HEALTHY = (
    _series("mizzen_process_up", "1x60"),
    _series("mizzen_workers_attached", "1x60"),
)
BUCKETS = "mizzen_time_to_first_token_seconds_bucket"
WORLDS: dict[str, tuple[tuple[dict[str, str], ...], set[str]]] = {
    "nothing is scraped": ((), {"MizzenMetricsMissing"}),
    "all is well and nobody asks": (HEALTHY, set()),
    "others are ill": (
        (
            *HEALTHY,
            {"series": 'mizzen_workers_attached{mizzen_service="other"}', "values": "0x60"},
            {"series": 'mizzen_queue_age_seconds{namespace="default"}', "values": "100x60"},
        ),
        set(),
    ),
    "all is well and busy": (
        (
            *HEALTHY,
            _series("mizzen_queued_requests", "3x60"),
            _series("mizzen_running_requests", "8x60"),
            _series("mizzen_queue_age_seconds", "1x60"),
            _series("mizzen_kv_used_tokens", "99x60"),
            _series("mizzen_kv_capacity_tokens", "100x60"),
            _series("mizzen_engine_retractions_total", "5x60"),
            _series("mizzen_engine_generated_tokens_total", "0+100x60"),
            _series("mizzen_engine_prefill_tokens_total", "0+100x60"),
            _series("mizzen_engine_steps_total", "0+9x60"),
            _series("mizzen_requests_finished_total", "0+60x60", more=',reason="stop"'),
            _series("mizzen_requests_finished_total", "0+1x60", more=',reason="error"'),
            _series("mizzen_http_requests_total", "0+60x60", more=',route="/a",status="200"'),
            _series(BUCKETS, "0+60x60", more=',le="1.0"'),
            _series(BUCKETS, "0+60x60", more=',le="+Inf"'),
        ),
        set(),
    ),
    "no worker is attached": (
        (_series("mizzen_process_up", "1x60"), _series("mizzen_workers_attached", "0x60")),
        {"MizzenNoWorker"},
    ),
    "only workers are scraped: there is no front": (
        (_series("mizzen_process_up", "1x60"),),
        {"MizzenNoWorker"},
    ),
    "one of two fronts has a worker": (
        (*HEALTHY, _series("mizzen_workers_attached", "0x60", pod="b")),
        set(),
    ),
    "a container restarts once": (
        (*HEALTHY, _series("mizzen_engine_steps_total", "0+5x30 0+5x29")),
        set(),
    ),
    "a container of two ranks restarts once": (
        (
            *HEALTHY,
            _series("mizzen_engine_steps_total", "0+5x30 0+5x29", more=',rank="0"'),
            _series("mizzen_engine_steps_total", "0+5x30 0+5x29", more=',rank="1"'),
        ),
        set(),
    ),
    "a container restarts twice": (
        (*HEALTHY, _series("mizzen_engine_steps_total", "0+5x30 0+5x10 0+5x17")),
        {"MizzenRestarts"},
    ),
    "a process restarts again": (
        (*HEALTHY, _series("mizzen_process_restarts_total", "1x40 2x18", more=',process="front"')),
        {"MizzenRestarts"},
    ),
    "requests wait": (
        (*HEALTHY, _series("mizzen_queue_age_seconds", "31x60")),
        {"MizzenQueueWaitHigh"},
    ),
    "first tokens are late": (
        (
            *HEALTHY,
            _series(BUCKETS, "0+10x60", more=',le="10.0"'),
            _series(BUCKETS, "0+60x60", more=',le="30.0"'),
            _series(BUCKETS, "0+60x60", more=',le="+Inf"'),
        ),
        {"MizzenFirstTokenSlow"},
    ),
    "KV memory is full and requests are put back": (
        (
            *HEALTHY,
            _series("mizzen_kv_used_tokens", "95x60"),
            _series("mizzen_kv_capacity_tokens", "100x60"),
            _series("mizzen_engine_retractions_total", "0+1x60"),
        ),
        {"MizzenKVMemoryFull"},
    ),
    "requests end in errors": (
        (
            *HEALTHY,
            _series("mizzen_requests_finished_total", "0+60x60", more=',reason="stop"'),
            _series("mizzen_requests_finished_total", "0+6x60", more=',reason="error"'),
        ),
        {"MizzenRequestsFailing"},
    ),
    "requests are answered with 503 while probes are answered": (
        (
            *HEALTHY,
            _series("mizzen_http_requests_total", "0+900x60", more=',route="/health",status="200"'),
            _series(
                "mizzen_http_requests_total", "0+900x60", more=',route="/metrics",status="200"'
            ),
            _series("mizzen_http_requests_total", "0+5x60", more=',route="/v1/a",status="200"'),
            _series("mizzen_http_requests_total", "0+5x60", more=',route="/v1/a",status="503"'),
        ),
        {"MizzenRequestsFailing"},
    ),
    "clients go away": (
        (
            *HEALTHY,
            _series("mizzen_http_requests_total", "0+60x60", more=',route="/a",status="499"'),
            _series("mizzen_requests_finished_total", "0+60x60", more=',reason="abort"'),
        ),
        set(),
    ),
    "a step never ends": (
        (
            *HEALTHY,
            _series("mizzen_queued_requests", "0x60"),
            _series("mizzen_running_requests", "2x60"),
            _series("mizzen_engine_generated_tokens_total", "7x60"),
            _series("mizzen_engine_prefill_tokens_total", "9x60"),
        ),
        {"MizzenStandstill"},
    ),
    "a long prompt is read": (
        (
            *HEALTHY,
            _series("mizzen_queued_requests", "1x60"),
            _series("mizzen_running_requests", "0x60"),
            _series("mizzen_engine_generated_tokens_total", "7x60"),
            _series("mizzen_engine_prefill_tokens_total", "0+900x60"),
        ),
        set(),
    ),
}


def test_every_alert_fires_in_some_world() -> None:
    fired = set().union(*(alerts for _, alerts in WORLDS.values()))
    assert fired == {rule["alert"] for rule in alert_rules(SERVICE)}


def test_alerts_fire_when_they_are_true_and_only_then(tmp_path: Path) -> None:
    rules = alert_rules(SERVICE)
    tests = [
        {
            "name": world,
            "interval": "1m",
            "input_series": list(series),
            # What fires, by name only: ALERTS is the series that Prometheus makes of them.
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}})',
                    "eval_time": "59m",
                    "exp_samples": (
                        [{"labels": "{}", "value": 1}] if rule["alert"] in fired else []
                    ),
                }
                for rule in rules
            ],
        }
        for world, (series, fired) in WORLDS.items()
    ]
    path = tmp_path / "worlds.yaml"
    document = {"rule_files": [str(rule_file(tmp_path))], "tests": tests}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert "SUCCESS" in promtool("test", "rules", str(path))
