"""Owns the services that tests render, plan and judge."""

from typing import Any

from tests.operator.spec.rule_examples import document, patched

from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Defaults, Pinned, Resolved, resolve

DEFAULTS = Defaults(frontend_image="mizzen-frontend:test", worker_image="mizzen-worker:test")
META = {"metadata": {"uid": "11111111-2222-3333-4444-555555555555", "generation": 1}}


def resolved(pinned: Pinned | None = None, **spec: Any) -> Resolved:
    """A resolved service; rules that would refuse it are not asked."""
    body = document(patched(META, {"spec": spec}))
    return resolve(parse(body), DEFAULTS, pinned)
