"""Owns the rules about where weights come from and where they are kept.

Does not own rules about anything else (``rules``).
"""

import re

from mizzen_operator.errors import CLAIM_NOT_SHAREABLE
from mizzen_operator.spec.model import InferenceService, Spec, Topology
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.spec.rule import Rule, is_zero

_SOURCES = ("pvc", "huggingFace", "s3", "oci")
_HAS = {name: f"has(self.model.source.{name})" for name in _SOURCES}
_IS_FETCHED = " || ".join(_HAS[name] for name in _SOURCES if name != "pvc")
_SHAREABLE_ONLY = (
    "!has(self.model.cache) || self.model.cache.accessMode != 'ReadWriteOnce' || "
    "(self.topology == 'Unified' && self.replicas <= 1 && "
    "(self.worker.rollout.maxSurge == 0 || self.worker.rollout.maxSurge == '0%'))"
)
_TAGGED = "[:@][^/]+$"
_HOST_ONLY = "^https?://[^/]+/*$"
_UNSHARED = (
    "access mode ReadWriteOnce is mounted on one node at a time, and tokenizer pods, more replicas "
    "or surge may be on other nodes"
)


def _is_inside(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _path_of(spec: Spec, source: str) -> str:
    """The path that the source names; empty for another source."""
    given = spec.model.source.model_dump(by_alias=True, exclude_none=True).get(source, {})
    return str(given.get("path", ""))


def _path_rule(source: str) -> Rule:
    field = f"self.model.source.{source}.path"
    is_pvc = source == "pvc"
    return Rule(
        id="model-path-inside" if is_pvc else f"model-path-inside-{source}",
        field=f"spec.model.source.{source}.path",
        cel=f"!{_HAS[source]} || !has({field}) || "
        f"(!{field}.startsWith('/') && !{field}.matches('(^|/)\\\\.\\\\.(/|$)'))",
        holds=lambda service: _is_inside(_path_of(service.spec, source)),
        message=f"the path must lie inside the {'claim' if is_pvc else 'fetched model'}",
        remedy=f"write it relative to {'the claim' if is_pvc else 'that folder'}'s root, "
        "without '..'",
    )


def _is_tagged(service: InferenceService) -> bool:
    source = service.spec.model.source.oci
    return source is None or re.search(_TAGGED, source.image) is not None


def _is_endpoint_a_host(service: InferenceService) -> bool:
    source = service.spec.model.source.s3
    endpoint = None if source is None else source.endpoint
    return endpoint is None or re.search(_HOST_ONLY, endpoint) is not None


def _needs_no_sharing(spec: Spec) -> bool:
    return (
        spec.topology is Topology.UNIFIED
        and spec.replicas <= 1
        and is_zero(spec.worker.rollout.max_surge)
    )


def _is_shared_as_needed(service: InferenceService) -> bool:
    cache = service.spec.model.cache
    if cache is None or cache.access_mode == "ReadWriteMany":
        return True
    return _needs_no_sharing(service.spec)


def _unshared(service: InferenceService) -> str:
    cache = service.spec.model.cache
    if cache is None or cache.storage_class_name is None or _is_shared_as_needed(service):
        return ""
    return f"a claim of storage class {cache.storage_class_name} with {_UNSHARED}"


SOURCE_RULES = (
    Rule(
        id="model-source-one",
        field="spec.model.source",
        cel=f"[{', '.join(_HAS.values())}].filter(x, x).size() == 1",
        holds=lambda service: len(service.spec.model.source.model_dump(exclude_none=True)) == 1,
        message="exactly one source of the model must be given",
        remedy="set one of model.source.pvc, huggingFace, s3 and oci",
    ),
    *(_path_rule(source) for source in _SOURCES),
    Rule(
        id="model-image-tagged",
        field="spec.model.source.oci.image",
        cel=f"!{_HAS['oci']} || self.model.source.oci.image.matches('{_TAGGED}')",
        holds=_is_tagged,
        message="the image has neither a tag nor a digest",
        remedy="put :TAG or @sha256:DIGEST behind its name",
    ),
    Rule(
        id="model-s3-endpoint-host",
        field="spec.model.source.s3.endpoint",
        cel=f"!{_HAS['s3']} || !has(self.model.source.s3.endpoint) || "
        f"self.model.source.s3.endpoint.matches('{_HOST_ONLY}')",
        holds=_is_endpoint_a_host,
        message="the address of an S3 server has no path",
        remedy="write https://HOST; a folder of the bucket is named by model.source.s3.prefix",
    ),
    Rule(
        id="model-cache-fetched-only",
        field="spec.model.cache",
        cel=f"!{_HAS['pvc']} || {_IS_FETCHED} || !has(self.model.cache)",
        holds=lambda service: (
            service.spec.model.source.pvc is None
            or service.spec.model.source.fetched is not None
            or service.spec.model.cache is None
        ),
        message="weights on an existing claim are not fetched, so there is nothing to keep",
        remedy="remove model.cache",
    ),
    Rule(
        id="model-cache-needed",
        field="spec.model.cache",
        cel=f"has(self.model.cache) || {_HAS['pvc']} || !({_IS_FETCHED})",
        holds=lambda service: (
            service.spec.model.source.fetched is None
            or service.spec.model.source.pvc is not None
            or service.spec.model.cache is not None
        ),
        message="fetched weights need a claim to be kept on",
        remedy="set model.cache.size, and storageClassName there if the cluster has no default",
    ),
    Rule(
        id="model-cache-size",
        field="spec.model.cache.size",
        # The API server compares no quantities.
        cel=None,
        holds=lambda service: (
            service.spec.model.cache is None or quantity_value(service.spec.model.cache.size) > 0
        ),
        message="the claim must have room for the weights",
        remedy="set it to the size of the weights and some room",
    ),
    Rule(
        id="model-cache-shareable",
        field="spec.model.cache.accessMode",
        cel=_SHAREABLE_ONLY,
        holds=_is_shared_as_needed,
        finding=_unshared,
        message=f"a claim with {_UNSHARED}",
        remedy="use ReadWriteMany with a storage class that has it, or topology Unified with one "
        "replica and maxSurge 0",
        reason=CLAIM_NOT_SHAREABLE,
    ),
)
