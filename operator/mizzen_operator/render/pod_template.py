"""Owns putting a user's pod template over the pods that we render for a role.

Does not own what it may hold (``pod_template_rules``) nor how two templates become one
(``strategic_merge``). Invariant: a role without a template is rendered as if there were none.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.strategic_merge import key_of, merged
from mizzen_operator.spec.resolve import Resolved

RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What the restricted pod security standard asks of every container; its other half is the pod's.
The root file system of a container that is not ours stays writable unless it says otherwise."""


def pod_template_of(resolved: Resolved, role: str) -> Mapping[str, Any] | None:
    """What the user wrote for the pods of a role; None for nothing, and for roles without one."""
    if role == labels.ROLE_WORKER:
        return resolved.spec.worker.pod_template
    if role == labels.ROLE_TOKENIZER and resolved.tokenizer is not None:
        return resolved.tokenizer.pod_template
    return None


def without_pod_templates(resolved: Resolved) -> Resolved:
    """The same service, at the same revision, as if its users had written no pod template."""
    nothing = {"pod_template": None}
    spec, tokenizer = resolved.spec, resolved.tokenizer
    worker = spec.worker.model_copy(update=nothing)
    return replace(
        resolved,
        spec=spec.model_copy(update={"worker": worker}),
        tokenizer=None if tokenizer is None else tokenizer.model_copy(update=nothing),
    )


def with_pod_template(base: dict[str, Any], template: Mapping[str, Any] | None) -> dict[str, Any]:
    """The rendered pod template with the user's over it; the user's containers are restricted."""
    if not template:
        return base
    spec = base["spec"]
    lists = {
        name: merged(spec.get(name, []), _restricted(name, template, spec), name)
        for name in ("containers", "initContainers")
        if template.get("spec", {}).get(name)
    }
    return dict(merged({**base, "spec": {**spec, **lists}}, template))


def _restricted(name: str, template: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Any]:
    """A beginning for each container that is the user's alone."""
    ours = {key_of(name, item) for item in spec.get(name, [])}
    return [
        {"name": item["name"], "securityContext": RESTRICTED}
        for item in template["spec"][name]
        if key_of(name, item) not in ours
    ]
