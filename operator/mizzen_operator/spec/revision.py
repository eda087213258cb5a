"""Owns the hashes of a service: revision (a pod template), cohort (who may work together), keys.

Does not own the rendered pods: a hash covers inputs, never output, so that a new release of the
operator changes none of them. Invariant: every field that changes a worker pod is in the revision.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from mizzen_operator.spec.model import Spec, Topology
from mizzen_operator.spec.weights import weights_identity

HASH_LENGTH = 6
# No vowels, so no words; no "e" and no 0, 1, 3, so that YAML and people read no number or letter.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NOT_IN_POD = frozenset({"rollout", "replicas", "restart"})
"""Fields of a role that shape no pod of it."""
_GPU = "gpu"
_NOT_OF_GPU_IN_POD = frozenset({"class", "memory"})
"""The same of its GPUs: what is only reckoned with."""
_COHORT_ENGINE = ("contextLength", "dtype", "args")


def canonical_hash(value: object) -> str:
    """SHA-256 in hexadecimal over canonical JSON; equal values give equal text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def short_hash(value: object) -> str:
    """A few characters for names and labels."""
    number = int(canonical_hash(value), 16)
    digits = []
    for _ in range(HASH_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def key_generation(spec: Spec) -> str:
    """Six characters that name the CURVE keys; empty for those that a service begins with."""
    asked = spec.security.key_rotation
    return "" if asked is None else short_hash(asked)


def cohort_hash(spec: Spec, *, template_version: str, worker_image: str) -> str:
    """Hash of what tokenizer pods and worker groups must agree upon."""
    engine = _written(spec.engine)
    keys = key_generation(spec)
    inputs = {
        **({"keys": keys} if keys else {}),
        "template": template_version,
        "topology": spec.topology.value,
        "image": worker_image,
        "source": weights_identity(spec.model),
        "engine": {key: engine[key] for key in _COHORT_ENGINE if key in engine},
    }
    return short_hash(inputs)


def revision_hash(spec: Spec, *, cohort: str, served_name: str) -> str:
    """Hash of everything that changes a worker pod."""
    engine = _written(spec.engine)
    worker = _written(spec.worker)
    inputs = {
        "cohort": cohort,
        "engine": {key: engine[key] for key in engine if key != "images"},
        "worker": _of_pod(worker),
        # In Split only tokenizer pods know the served name.
        "served_name": served_name if spec.topology is Topology.UNIFIED else "",
    }
    return short_hash(inputs)


def written_of_pods(spec: Spec) -> dict[str, Any]:
    """The part of a spec that its pods are rendered from, as written; ``Spec`` reads it back."""
    parts = {
        "model": _written(spec.model),
        "engine": _written(spec.engine),
        "worker": _written(spec.worker),
        "tokenizer": _written(spec.tokenizer) if spec.tokenizer is not None else {},
        "security": _written(spec.security),
    }
    kept = {name: _of_pod(part) for name, part in parts.items()}
    return {
        "topology": spec.topology.value,
        **{name: part for name, part in kept.items() if part},
    }


def _of_pod(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the spec without what shapes no pod."""
    kept = {key: part[key] for key in part if key not in _NOT_IN_POD}
    if _GPU in kept:
        gpu = {key: value for key, value in kept[_GPU].items() if key not in _NOT_OF_GPU_IN_POD}
        kept |= {_GPU: gpu}
        if not gpu:
            del kept[_GPU]
    return kept


def _written(part: BaseModel) -> dict[str, Any]:
    """Fields that differ from their default: a field added later leaves older hashes alone."""
    return part.model_dump(by_alias=True, mode="json", exclude_defaults=True)
