"""Owns asking, of a service that is still to be made, whether its groups would be wired rightly.

Does not own what that takes (``wiring``), nor what users' pod templates may hold
(``pod_template_rules``). Two groups stand for all: they differ in their index.
"""

from mizzen_operator.errors import WIRING_FAULT, Problem
from mizzen_operator.render import labels
from mizzen_operator.render.pod_template import without_pod_templates
from mizzen_operator.render.pod_template_rules import template_rule_problems
from mizzen_operator.render.render import (
    RenderContext,
    render,
    rendered_tokenizer,
    rendered_worker_group,
)
from mizzen_operator.render.templates import template_problems
from mizzen_operator.render.wiring import wiring_faults
from mizzen_operator.spec.resolve import Resolved


def render_problems(resolved: Resolved) -> list[Problem]:
    """Why this release cannot make the service although its spec is valid; empty if it can."""
    return (
        template_problems(resolved) or pod_template_problems(resolved) or wiring_problems(resolved)
    )


def pod_template_problems(resolved: Resolved) -> list[Problem]:
    """What users' pod templates hold that may not be merged over the pods of this service."""
    plain = without_pod_templates(resolved)
    problems = []
    worker, tokenizer = resolved.spec.worker.pod_template, resolved.tokenizer
    if worker is not None:
        base = rendered_worker_group(plain, 0)["spec"]["template"]
        problems += template_rule_problems(labels.ROLE_WORKER, base, worker)
    if tokenizer is not None and tokenizer.pod_template is not None:
        assert plain.tokenizer is not None
        base = rendered_tokenizer(plain, plain.tokenizer)["spec"]["template"]
        problems += template_rule_problems(labels.ROLE_TOKENIZER, base, tokenizer.pod_template)
    return problems


def wiring_problems(resolved: Resolved) -> list[Problem]:
    """Faults that would hold nodes for ranks that never meet; a group of one pod has none."""
    if resolved.nodes == 1:
        return []
    objects = render(resolved, RenderContext(groups=(0, 1)))
    return [
        Problem(
            field="spec.worker.parallelism",
            value="",
            message=fault,
            remedy="this is a fault of this release of the operator: report it, and set nodes to 1 "
            "until it is mended",
            reason=WIRING_FAULT,
        )
        for fault in wiring_faults(objects, resolved.spec.worker.gpu.resource_name)
    ]
