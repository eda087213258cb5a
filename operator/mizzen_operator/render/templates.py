"""Owns the versions of what pods are rendered to: each revision keeps the one it began with.

Does not own what a version renders. Invariant: what a released version renders for equal input
never changes (golden tests); another way to render pods is another version, beside the old ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mizzen_operator.errors import NOT_AVAILABLE, Problem
from mizzen_operator.render.tokenizer import tokenizer_deployment
from mizzen_operator.render.worker_group import worker_group
from mizzen_operator.spec.model import Tokenizer
from mizzen_operator.spec.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One way to render the objects that hold pods."""

    worker_group: Callable[[Resolved, int], dict[str, Any]]
    tokenizer_deployment: Callable[[Resolved, Tokenizer], dict[str, Any]]


TEMPLATES = {"v1": Template(worker_group=worker_group, tokenizer_deployment=tokenizer_deployment)}
"""By version; ``spec/resolve`` says which one new services begin with."""


def template_of(resolved: Resolved) -> Template:
    """The template of the resolved service; KeyError for one that has template problems."""
    return TEMPLATES[resolved.pinned.template_version]


def template_problems(resolved: Resolved) -> list[Problem]:
    """A version that only a later release of the operator knows, which is so after a downgrade."""
    version = resolved.pinned.template_version
    if version in TEMPLATES:
        return []
    return [
        Problem(
            field="spec.updatePolicy",
            value=resolved.spec.update_policy,
            message=f"the service is pinned to template version {version}, which this release of "
            "the operator does not know",
            remedy="upgrade the operator again, or set Follow, which rolls the service",
            reason=NOT_AVAILABLE,
        )
    ]
