"""Owns the two hashes of a service: revision (a pod template) and cohort (who may work together).

Does not own the rendered pods: a hash covers inputs, never output, so that a new release of the
operator changes none of them. Invariant: every field that changes a worker pod is in the revision.
"""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from mizzen_operator.spec.model import Spec, Topology

HASH_LENGTH = 6
# No vowels, so no words; no "e" and no 0, 1, 3, so that YAML and people read no number or letter.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NOT_IN_POD = frozenset({"rollout"})
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


def cohort_hash(spec: Spec, *, template_version: str, worker_image: str) -> str:
    """Hash of what tokenizer pods and worker groups must agree upon."""
    engine = _written(spec.engine)
    inputs = {
        "template": template_version,
        "topology": spec.topology.value,
        "image": worker_image,
        "source": _written(spec.model.source),
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
        "worker": {key: worker[key] for key in worker if key not in _NOT_IN_POD},
        # In Split only tokenizer pods know the served name.
        "served_name": served_name if spec.topology is Topology.UNIFIED else "",
    }
    return short_hash(inputs)


def _written(part: BaseModel) -> dict[str, Any]:
    """Fields that differ from their default: a field added later leaves older hashes alone."""
    return part.model_dump(by_alias=True, mode="json", exclude_defaults=True)
