"""Owns what the planner makes of the API server's answers about pod templates; pure.

Does not own asking (``cluster/trial``) nor the words of a complaint (``render/origin``).

Invariants: a role that is held changes nothing, creates nothing and loses nothing of another
revision; where pods of another cohort live, one held role holds the whole service, because the
other roles of the new cohort could not work without it and the old one would lose what it needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mizzen_operator.errors import Problem
from mizzen_operator.observed import Child, Observed
from mizzen_operator.planner.groups import Group
from mizzen_operator.planner.rollout import Step
from mizzen_operator.render import labels
from mizzen_operator.render.render import rendered_tokenizer, rendered_worker_group
from mizzen_operator.spec.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTemplate:
    """The pod template that a role shall have, in the objects that carry it."""

    role: str
    objects: tuple[dict[str, Any], ...]
    """Rendered owners of such pods, at least one: all accepted or refused alike."""

    @property
    def owner(self) -> dict[str, Any]:
        """The one that the API server is asked about."""
        return self.objects[0]

    @property
    def template(self) -> dict[str, Any]:
        """Its pod template."""
        found: dict[str, Any] = self.owner["spec"]["template"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAnswers:
    """What is known of the templates that are not simply accepted, by role."""

    refused: Mapping[str, Problem] = field(default_factory=dict)
    """The API server would not make such pods."""
    kept_out: Mapping[str, str] = field(default_factory=dict)
    """What keeps pods away now, in the API server's words: told, and nothing is held up. Either
    the template is taken but a quota is used up (pods that end may make room, those that this very
    roll-out replaces among them), or it lives and a policy that came later is against new pods of
    it. Controllers try again for ever."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """It could not be asked; why."""

    @property
    def held(self) -> dict[str, str]:
        """Why a role may not change now."""
        refused = {
            role: f"the API server refuses the {role} pods: condition Accepted says why"
            for role in self.refused
        }
        unanswered = {
            role: f"the API server could not be asked about the {role} pods: {why}"
            for role, why in self.unanswered.items()
        }
        return {**unanswered, **refused}


NO_OBJECTION = TemplateAnswers()


def role_templates(
    resolved: Resolved, applied: Iterable[dict[str, Any]]
) -> tuple[RoleTemplate, ...]:
    """The templates of every role that shall have pods; ``applied`` is what the plan renders.

    Also of a role whose objects are not in the plan yet: a roll-out may have to remove a group
    first, and a template that is refused must be known before that.
    """
    objects = list(applied)
    templates = []
    if resolved.groups > 0:
        # Former groups are rendered too, each from its own revision.
        groups = tuple(
            obj
            for obj in objects
            if obj["kind"] == "StatefulSet"
            and obj["metadata"]["labels"].get(labels.REVISION) == resolved.revision
        )
        first = groups or (rendered_worker_group(resolved, 0),)
        templates.append(RoleTemplate(role=labels.ROLE_WORKER, objects=first))
    if resolved.tokenizer is not None and not resolved.spec.stopped:
        deployments = tuple(obj for obj in objects if obj["kind"] == "Deployment")
        first = deployments or (rendered_tokenizer(resolved, resolved.tokenizer),)
        templates.append(RoleTemplate(role=labels.ROLE_TOKENIZER, objects=first))
    jobs = tuple(obj for obj in objects if obj["kind"] == "Job")
    if jobs:
        templates.append(RoleTemplate(role=labels.ROLE_WEIGHTS, objects=jobs))
    return tuple(templates)


def is_everything_held(
    resolved: Resolved, observed: Observed, groups: Iterable[Group], held: Mapping[str, str]
) -> bool:
    """Whether a held role stops the service as a whole: see the invariants."""
    if not held:
        return False
    cohorts = {group.cohort for group in groups if not group.is_leaving}
    cohorts |= {
        item.child.labels.get(labels.COHORT, "")
        for item in observed.deployments
        if observed.owns(item.child) and not item.child.deleting
    }
    return bool(cohorts - {resolved.cohort})


def step_within(step: Step, resolved: Resolved, held: Mapping[str, str]) -> Step:
    """The step without what a held worker role forbids; scaling down goes on."""
    why = held.get(labels.ROLE_WORKER)
    if why is None:
        return step
    remove = tuple(item for item in step.remove if item[0].revision == resolved.revision)
    return Step(remove=remove, waits_for=why)


def is_of_held_role(child_labels: Mapping[str, str], held: Mapping[str, str]) -> bool:
    """Whether an object belongs to a role that is held."""
    return child_labels.get(labels.ROLE) in held


def without_held(children: Iterable[Child], held: Mapping[str, str]) -> list[Child]:
    """The children that may be removed."""
    return [child for child in children if not is_of_held_role(child.labels, held)]
