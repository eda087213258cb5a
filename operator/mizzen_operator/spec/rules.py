"""Owns the one table of rules across fields: each is a CEL rule of the CRD and a Python predicate.

Does not own the form of single fields (``model``). Invariant: CEL and predicate of a rule accept
the same objects; tests run each rule's examples through both.
"""

import re
from collections.abc import Callable
from itertools import combinations

from mizzen_operator.errors import NOT_AVAILABLE
from mizzen_operator.spec.model import (
    AVAILABLE_TOPOLOGIES,
    GROUP,
    InferenceService,
    Spec,
    Topology,
)
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.spec.resources import Resources
from mizzen_operator.spec.rule import Rule, is_zero, value_at
from mizzen_operator.spec.schema import reserved_paths, spec_schema
from mizzen_operator.spec.source_rules import SOURCE_RULES
from mizzen_operator.worker_contract import OWNED_ENV_PREFIX, OWNED_FLAGS

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MAX_NAME_LENGTH = 38
OWNED_FLAG_PATTERN = f"(?s)^({'|'.join(OWNED_FLAGS)})(=.*)?$"
_OWNED = re.compile(OWNED_FLAG_PATTERN)
OWNED_LABEL_PREFIXES = (f"{GROUP}/", "app.kubernetes.io/", "controller.kubernetes.io/")
"""Of labels by which we, or Kubernetes' controllers, find what they own."""
UNAVAILABLE = "not available in this version"
UNAVAILABLE_PREFIX = "unavailable-"
"""Of the ids of rules that refuse a reserved field."""


def _oversized(resources: Resources) -> str:
    """The requests above their limits, in words; empty if there are none."""
    return ", ".join(
        f"{name} request {amount} is above its limit {resources.limits[name]}"
        for name, amount in resources.requests.items()
        if name in resources.limits
        and quantity_value(amount) > quantity_value(resources.limits[name])
    )


def _requests_fit(
    rule_id: str, field: str, resources_of: Callable[[Spec], Resources | None]
) -> Rule:
    """The rule that no request of these resources is above its limit."""

    def finding(service: InferenceService) -> str:
        resources = resources_of(service.spec)
        return "" if resources is None else _oversized(resources)

    return Rule(
        id=rule_id,
        field=field,
        # The API server compares no quantities.
        cel=None,
        holds=lambda service: not finding(service),
        finding=finding,
        message="a request is larger than its limit",
        remedy="lower the request or raise the limit",
    )


def _owned_flags(service: InferenceService) -> str:
    """Arguments that the operator sets, each with its field, in words; empty without any."""
    flags = [arg.partition("=")[0] for arg in service.spec.engine.args if _OWNED.fullmatch(arg)]
    return ", ".join(
        f"{flag} is set by the operator" + (f" from spec.{field}" if field else "")
        for flag in dict.fromkeys(flags)
        for field in (OWNED_FLAGS[flag],)
    )


def _owned_labels(service: InferenceService) -> str:
    """Keys of extra labels that are the operator's, in words; empty if there are none."""
    asked = service.spec.observability
    keys = () if asked is None else tuple(asked.labels)
    return ", ".join(
        f"label {key} is set by the operator"
        for key in keys
        if key.startswith(OWNED_LABEL_PREFIXES)
    )


def _are_parents_distinct(service: InferenceService) -> bool:
    """Whether no two parentRefs could mean the same listener."""
    route = service.spec.routing.http_route
    refs = () if route is None else route.parent_refs
    return not any(
        (one.name, one.namespace) == (other.name, other.namespace)
        and (
            None in (one.section_name, other.section_name) or one.section_name == other.section_name
        )
        for one, other in combinations(refs, 2)
    )


def _are_hostnames_names(service: InferenceService) -> bool:
    route = service.spec.routing.http_route
    names = () if route is None else route.hostnames
    return not any(re.search(_NUMBER_LAST, name) for name in names)


def _is_world_sound(spec: Spec) -> bool:
    plan, per_node = spec.worker.parallelism, spec.worker.gpu.count_per_node
    return per_node == 0 or plan.tensor * plan.pipeline * plan.data == plan.nodes * per_node


def _unavailable(path: str) -> Rule:
    """The rule that refuses a reserved field; ``path`` starts below the spec."""
    steps = path.split(".")
    prefixes = [".".join(["self", *steps[: end + 1]]) for end in range(len(steps))]
    guard = " && ".join(f"has({prefix})" for prefix in prefixes)
    return Rule(
        id=f"{UNAVAILABLE_PREFIX}{path.replace('.', '-')}",
        field=f"spec.{path}",
        cel=f"!({guard})",
        holds=lambda service: value_at(service, f"spec.{path}") is None,
        message=f"{path} is {UNAVAILABLE}",
        remedy="remove it",
        reason=NOT_AVAILABLE,
    )


_SAME_PLACE = (
    "q.name == p.name && has(q.__namespace__) == has(p.__namespace__) && "
    "(!has(q.__namespace__) || q.__namespace__ == p.__namespace__)"
)
_NUMBER_LAST = "(^|[.])[0-9]+$"
"""Of an IP address; no top-level domain is a number."""
_PARENTS_DISTINCT = (
    "!(has(self.routing) && has(self.routing.httpRoute)) || "
    "self.routing.httpRoute.parentRefs.all(p, self.routing.httpRoute.parentRefs.exists_one(q, "
    f"{_SAME_PLACE} && (!has(q.sectionName) || !has(p.sectionName) || "
    "q.sectionName == p.sectionName)))"
)
"""The API server writes `namespace`, a reserved word, with underscores."""
_WRITTEN_RULES = (
    Rule(
        id="name",
        field="metadata.name",
        cel=f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && "
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        holds=lambda service: (
            len(service.name) <= MAX_NAME_LENGTH
            and re.fullmatch(NAME_PATTERN, service.name) is not None
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
        id="key-rotation-only-split",
        field="spec.security.keyRotation",
        cel="self.topology != 'Unified' || !has(self.security) || !has(self.security.keyRotation)",
        holds=lambda service: (
            service.spec.topology is not Topology.UNIFIED
            or service.spec.security.key_rotation is None
        ),
        message="only pods of topology Split have keys",
        remedy="set topology to Split or remove keyRotation",
    ),
    Rule(
        id="engine-args-owned",
        field="spec.engine.args",
        cel="!has(self.engine.args) || "
        f"!self.engine.args.exists(a, a.matches('{OWNED_FLAG_PATTERN}'))",
        holds=lambda service: not _owned_flags(service),
        finding=_owned_flags,
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
                is_zero(service.spec.worker.rollout.max_surge)
                and is_zero(service.spec.worker.rollout.max_unavailable)
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
        id="pipeline-unavailable",
        field="spec.worker.parallelism.pipeline",
        cel="self.worker.parallelism.pipeline == 1",
        holds=lambda service: service.spec.worker.parallelism.pipeline == 1,
        message=f"pipeline stages are {UNAVAILABLE}",
        remedy="set pipeline to 1; tensor parallel ranks share a model too",
        reason=NOT_AVAILABLE,
    ),
    Rule(
        id="nodes-topology-unavailable",
        field="spec.worker.parallelism.nodes",
        cel="self.worker.parallelism.nodes == 1 || self.topology == 'Split'",
        holds=lambda service: (
            service.spec.worker.parallelism.nodes == 1 or service.spec.topology is Topology.SPLIT
        ),
        message=f"groups of several pods are {UNAVAILABLE} in other topologies than Split",
        remedy="set topology to Split, or nodes to 1",
        reason=NOT_AVAILABLE,
    ),
    Rule(
        id="nodes-data-unavailable",
        field="spec.worker.parallelism.data",
        cel="self.worker.parallelism.nodes == 1 || self.worker.parallelism.data == 1",
        holds=lambda service: (
            service.spec.worker.parallelism.nodes == 1 or service.spec.worker.parallelism.data == 1
        ),
        message=f"data parallel ranks over several pods are {UNAVAILABLE}",
        remedy="set data to 1 and replicas higher, or nodes to 1",
        reason=NOT_AVAILABLE,
    ),
    Rule(
        id="nodes-share-ranks",
        field="spec.worker.parallelism.nodes",
        cel="self.worker.parallelism.tensor % self.worker.parallelism.nodes == 0",
        holds=lambda service: (
            service.spec.worker.parallelism.tensor % service.spec.worker.parallelism.nodes == 0
        ),
        message="each pod of a group runs the same number of tensor parallel ranks, so nodes must "
        "divide tensor",
        remedy="set tensor to a multiple of nodes",
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
        id="gpu-memory-once",
        field="spec.worker.gpu.memory",
        cel="!has(self.worker.gpu.class) || !has(self.worker.gpu.memory)",
        holds=lambda service: (
            service.spec.worker.gpu.class_name is None or service.spec.worker.gpu.memory is None
        ),
        message="the memory of a GPU is given twice, by gpu.class too",
        remedy="keep one of them",
    ),
    Rule(
        id="gpu-memory-unit",
        field="spec.worker.gpu.memory",
        # The API server compares no quantities.
        cel=None,
        holds=lambda service: quantity_value(service.spec.worker.gpu.memory or "1Gi") >= 1 << 30,
        message="no GPU has less than 1Gi of memory",
        remedy="give the memory of one GPU with its unit, such as 24Gi",
    ),
    Rule(
        id="gpu-memory-of-gpu",
        field="spec.worker.gpu.countPerNode",
        cel="self.worker.gpu.countPerNode > 0 || "
        "!(has(self.worker.gpu.class) || has(self.worker.gpu.memory))",
        holds=lambda service: (
            service.spec.worker.gpu.count_per_node > 0
            or (service.spec.worker.gpu.class_name or service.spec.worker.gpu.memory) is None
        ),
        message="gpu.class and gpu.memory are about GPUs, and the pods have none",
        remedy="set countPerNode to 1 or more, or remove them; on the CPU the limit of memory in "
        "worker.resources is what counts",
    ),
    _requests_fit(
        "worker-requests-fit", "spec.worker.resources", lambda spec: spec.worker.resources
    ),
    _requests_fit(
        "tokenizer-requests-fit",
        "spec.tokenizer.resources",
        lambda spec: None if spec.tokenizer is None else spec.tokenizer.resources,
    ),
    _requests_fit(
        "model-cache-requests-fit",
        "spec.model.cache.resources",
        lambda spec: None if spec.model.cache is None else spec.model.cache.resources,
    ),
    Rule(
        id="routing-parents-distinct",
        field="spec.routing.httpRoute.parentRefs",
        cel=_PARENTS_DISTINCT,
        holds=_are_parents_distinct,
        message="two parentRefs name the same Gateway, and not each a sectionName of its own",
        remedy="remove one of them, or give each the name of another listener as sectionName",
    ),
    Rule(
        id="routing-hostnames-no-addresses",
        field="spec.routing.httpRoute.hostnames",
        cel="!(has(self.routing) && has(self.routing.httpRoute)) || "
        "!has(self.routing.httpRoute.hostnames) || self.routing.httpRoute.hostnames.all(h, "
        f"!h.matches('{_NUMBER_LAST}'))",
        holds=_are_hostnames_names,
        message="a route takes names, no IP addresses",
        remedy="name the host, or leave hostnames out: then all names and addresses of the "
        "Gateway's listeners lead here",
    ),
    Rule(
        id="observability-labels-owned",
        field="spec.observability.labels",
        # The schema cannot bound a map's keys, so the API server may not go through them.
        cel=None,
        holds=lambda service: not _owned_labels(service),
        finding=_owned_labels,
        message=f"labels that start with {' or '.join(OWNED_LABEL_PREFIXES)} are set by the "
        "operator",
        remedy="remove them",
    ),
)

RULES: tuple[Rule, ...] = (
    *_WRITTEN_RULES,
    *SOURCE_RULES,
    *(_unavailable(path) for path in reserved_paths(spec_schema())),
)
"""Every rule; ids are unique and never reused."""
