"""Owns the one table of rules across fields: each is a CEL rule of the CRD and a Python predicate.

Does not own the form of single fields (``model``). Invariant: CEL and predicate of a rule accept
the same objects; tests run each rule's examples through both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mizzen_operator.errors import INVALID_SPEC, NOT_AVAILABLE, Problem
from mizzen_operator.spec.model import (
    AVAILABLE_TOPOLOGIES,
    InferenceService,
    Parallelism,
    Resources,
    Spec,
    Topology,
)
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.spec.schema import reserved_paths, spec_schema
from mizzen_operator.spec.wording import shown
from mizzen_operator.worker_contract import OWNED_ENV_PREFIX, OWNED_FLAGS

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MAX_NAME_LENGTH = 38
OWNED_FLAG_PATTERN = f"(?s)^({'|'.join(OWNED_FLAGS)})(=.*)?$"
_OWNED = re.compile(OWNED_FLAG_PATTERN)
UNAVAILABLE = "not available in this version"
UNAVAILABLE_PREFIX = "unavailable-"
"""Of the ids of rules that refuse a reserved field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold between fields."""

    id: str
    field: str
    """Path of the field that a person has to change."""
    cel: str | None
    """Expression over ``self`` = the spec (the whole object when ``at_root``); None where the API
    server cannot compute it within its cost budget, so that only Python checks it."""
    holds: Callable[[InferenceService], bool]
    message: str
    remedy: str
    reason: str = INVALID_SPEC
    at_root: bool = False
    finding: Callable[[InferenceService], str] | None = None
    """What is wrong in this very service, values included; replaces message and value there."""

    def text(self) -> str:
        """What a person reads at admission."""
        return f"{self.message}; {self.remedy}"

    def problem(self, service: InferenceService) -> Problem:
        """The broken rule as a problem of this service."""
        found = self.finding(service) if self.finding is not None else ""
        return Problem(
            field=self.field,
            value="" if found else shown(_value_at(service, self.field)),
            message=found or self.message,
            remedy=self.remedy,
            reason=self.reason,
        )


def _value_at(service: InferenceService, path: str) -> Any:
    """The value there; None if there is none."""
    if path == "metadata.name":
        return service.name
    value: Any = service.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    for step in path.split(".")[1:]:
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _oversized(resources: Resources) -> str:
    """The requests above their limits, in words; empty if there are none."""
    return ", ".join(
        f"{name} request {amount} is above its limit {resources.limits[name]}"
        for name, amount in resources.requests.items()
        if name in resources.limits
        and quantity_value(amount) > quantity_value(resources.limits[name])
    )


def _oversized_tokenizer(service: InferenceService) -> str:
    tokenizer = service.spec.tokenizer
    return "" if tokenizer is None else _oversized(tokenizer.resources)


def _is_zero(count: int | str) -> bool:
    return Decimal(str(count).rstrip("%")) == 0


def _is_world_sound(spec: Spec) -> bool:
    plan, per_node = spec.worker.parallelism, spec.worker.gpu.count_per_node
    return per_node == 0 or plan.tensor * plan.pipeline * plan.data == plan.nodes * per_node


def _path_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _unavailable(path: str) -> Rule:
    """The rule that refuses a reserved field; ``path`` starts below the spec."""
    steps = path.split(".")
    prefixes = [".".join(["self", *steps[: end + 1]]) for end in range(len(steps))]
    guard = " && ".join(f"has({prefix})" for prefix in prefixes)
    return Rule(
        id=f"{UNAVAILABLE_PREFIX}{path.replace('.', '-')}",
        field=f"spec.{path}",
        cel=f"!({guard})",
        holds=lambda service: _value_at(service, f"spec.{path}") is None,
        message=f"{path} is {UNAVAILABLE}",
        remedy="remove it",
        reason=NOT_AVAILABLE,
    )


_WRITTEN_RULES = (
    Rule(
        id="name",
        field="metadata.name",
        cel=f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && "
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        holds=lambda service: (
            len(service.name) <= MAX_NAME_LENGTH
            and re.match(NAME_PATTERN, service.name) is not None
        ),
        message=f"the name must have at most {MAX_NAME_LENGTH} characters, start with a letter and "
        "hold only lower-case letters, digits and '-'",
        remedy="names of pods and Services are made from it: choose a shorter or simpler name",
        at_root=True,
    ),
    Rule(
        id="topology-disaggregated",
        field="spec.topology",
        cel="self.topology != 'Disaggregated'",
        holds=lambda service: service.spec.topology is not Topology.DISAGGREGATED,
        message=f"topology Disaggregated is {UNAVAILABLE}",
        remedy=f"use {' or '.join(AVAILABLE_TOPOLOGIES)}",
        reason=NOT_AVAILABLE,
    ),
    Rule(
        id="tokenizer-only-split",
        field="spec.tokenizer",
        cel="self.topology != 'Unified' || !has(self.tokenizer)",
        holds=lambda service: (
            service.spec.topology is not Topology.UNIFIED or service.spec.tokenizer is None
        ),
        message="tokenizer pods exist only in topology Split",
        remedy="set topology to Split or remove tokenizer",
    ),
    Rule(
        id="model-source-one",
        field="spec.model.source",
        cel="[has(self.model.source.pvc), has(self.model.source.huggingFace), "
        "has(self.model.source.s3), has(self.model.source.oci)].filter(x, x).size() == 1",
        holds=lambda service: len(service.spec.model.source.model_dump(exclude_none=True)) == 1,
        message="exactly one source of the model must be given",
        remedy="set model.source.pvc and nothing else",
    ),
    Rule(
        id="model-path-inside",
        field="spec.model.source.pvc.path",
        cel="!has(self.model.source.pvc) || !has(self.model.source.pvc.path) || "
        "(!self.model.source.pvc.path.startsWith('/') && "
        "!self.model.source.pvc.path.matches('(^|/)\\\\.\\\\.(/|$)'))",
        holds=lambda service: (
            service.spec.model.source.pvc is None
            or _path_inside(service.spec.model.source.pvc.path)
        ),
        message="the path must lie inside the claim",
        remedy="write it relative to the claim's root, without '..'",
    ),
    Rule(
        id="engine-args-owned",
        field="spec.engine.args",
        cel="!has(self.engine.args) || "
        f"!self.engine.args.exists(a, a.matches('{OWNED_FLAG_PATTERN}'))",
        holds=lambda service: not any(_OWNED.fullmatch(arg) for arg in service.spec.engine.args),
        message="one of these flags is set by the operator",
        remedy="remove it and use the field of the spec that it belongs to, such as "
        "engine.contextLength or worker.parallelism",
    ),
    Rule(
        id="engine-env-owned",
        field="spec.engine.env",
        cel="!has(self.engine.env) || "
        f"!self.engine.env.exists(e, e.name.startsWith('{OWNED_ENV_PREFIX}'))",
        holds=lambda service: (
            not any(item.name.startswith(OWNED_ENV_PREFIX) for item in service.spec.engine.env)
        ),
        message=f"names that start with {OWNED_ENV_PREFIX} belong to the operator",
        remedy="remove that variable",
    ),
    Rule(
        id="engine-env-unique",
        field="spec.engine.env",
        # The list is a map by name in the schema: the API server refuses a name given twice.
        cel=None,
        holds=lambda service: (
            len({item.name for item in service.spec.engine.env}) == len(service.spec.engine.env)
        ),
        message="a variable is given twice",
        remedy="keep one of them",
    ),
    Rule(
        id="rollout-stuck",
        field="spec.worker.rollout",
        cel="!((self.worker.rollout.maxSurge == 0 || self.worker.rollout.maxSurge == '0%') && "
        "(self.worker.rollout.maxUnavailable == 0 || "
        "self.worker.rollout.maxUnavailable == '0%'))",
        holds=lambda service: (
            not (
                _is_zero(service.spec.worker.rollout.max_surge)
                and _is_zero(service.spec.worker.rollout.max_unavailable)
            )
        ),
        message="maxSurge and maxUnavailable are both 0, so no roll-out could ever begin",
        remedy="set one of them to 1 or more",
    ),
    Rule(
        id="gpu-world",
        field="spec.worker.gpu.countPerNode",
        cel="self.worker.gpu.countPerNode == 0 || self.worker.parallelism.tensor * "
        "self.worker.parallelism.pipeline * self.worker.parallelism.data == "
        "self.worker.parallelism.nodes * self.worker.gpu.countPerNode",
        holds=lambda service: _is_world_sound(service.spec),
        message="tensor * pipeline * data must equal nodes * gpu.countPerNode",
        remedy="give every rank one GPU, or set countPerNode to 0 to run on the CPU",
    ),
    Rule(
        id="parallelism-unavailable",
        field="spec.worker.parallelism",
        cel="self.worker.parallelism.tensor == 1 && self.worker.parallelism.pipeline == 1 && "
        "self.worker.parallelism.data == 1 && self.worker.parallelism.nodes == 1",
        holds=lambda service: service.spec.worker.parallelism == Parallelism(),
        message=f"more than one rank per group is {UNAVAILABLE}",
        remedy="set tensor, pipeline, data and nodes to 1",
        reason=NOT_AVAILABLE,
    ),
    Rule(
        id="gpu-in-resources",
        field="spec.worker.resources",
        cel="!(has(self.worker.resources.limits) && "
        "self.worker.gpu.resourceName in self.worker.resources.limits) && "
        "!(has(self.worker.resources.requests) && "
        "self.worker.gpu.resourceName in self.worker.resources.requests)",
        holds=lambda service: (
            service.spec.worker.gpu.resource_name
            not in {
                **service.spec.worker.resources.limits,
                **service.spec.worker.resources.requests,
            }
        ),
        message="GPUs are not set in resources",
        remedy="use worker.gpu.countPerNode",
    ),
    Rule(
        id="worker-requests-fit",
        field="spec.worker.resources",
        cel=None,
        holds=lambda service: not _oversized(service.spec.worker.resources),
        finding=lambda service: _oversized(service.spec.worker.resources),
        message="a request is larger than its limit",
        remedy="lower the request or raise the limit",
    ),
    Rule(
        id="tokenizer-requests-fit",
        field="spec.tokenizer.resources",
        cel=None,
        holds=lambda service: not _oversized_tokenizer(service),
        finding=_oversized_tokenizer,
        message="a request is larger than its limit",
        remedy="lower the request or raise the limit",
    ),
)

RULES: tuple[Rule, ...] = (
    *_WRITTEN_RULES,
    *(_unavailable(path) for path in reserved_paths(spec_schema())),
)
"""Every rule; ids are unique and never reused."""
