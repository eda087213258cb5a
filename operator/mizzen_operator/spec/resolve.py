"""Owns filling in what a spec leaves open: images, template version, revision, cohort.

Does not own validation (``validate``) nor schema defaults (``model``). Pure: what the operator was
installed with and what was pinned earlier are arguments.
"""

from dataclasses import dataclass

from mizzen_operator.spec.model import InferenceService, Spec, Tokenizer, Topology
from mizzen_operator.spec.revision import cohort_hash, revision_hash

TEMPLATE_VERSION = "v1"
"""Version of the rendered pods; a change of what is rendered for equal input needs a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the operator's own configuration decides for services that leave it open."""

    frontend_image: str
    worker_image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Defaults that a service started with; they outlive an upgrade of the operator."""

    template_version: str
    frontend_image: str
    worker_image: str

    def as_text(self) -> str:
        """One line for an annotation; ``pinned_of`` reads it back."""
        return f"{self.template_version} {self.frontend_image} {self.worker_image}"


def pinned_of(text: str | None) -> Pinned | None:
    """The pin in an annotation's text; None if there is none or it is not one."""
    parts = (text or "").split(" ")
    if len(parts) != 3 or not all(parts):
        return None
    return Pinned(template_version=parts[0], frontend_image=parts[1], worker_image=parts[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A service with nothing left open: what is rendered, planned and reported."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    """As written, schema defaults included."""
    tokenizer: Tokenizer | None
    """None in topology Unified."""
    served_name: str
    frontend_image: str
    worker_image: str
    pinned: Pinned
    """Operator defaults in force, to be kept with the service."""
    revision: str
    """Six characters that name the worker pods' template."""
    cohort: str
    """Six characters equal for pods that may work together."""

    @property
    def groups(self) -> int:
        """Worker groups wanted."""
        return 0 if self.spec.stopped else self.spec.replicas

    @property
    def nodes(self) -> int:
        """Pods of one group."""
        return self.spec.worker.parallelism.nodes


def resolve(
    service: InferenceService, defaults: Defaults, pinned: Pinned | None = None
) -> Resolved:
    """Fill in what is open; ``pinned`` wins over ``defaults`` unless told to follow."""
    spec = service.spec
    keep = pinned if pinned is not None and spec.update_policy == "Pinned" else None
    pin = keep or Pinned(
        template_version=TEMPLATE_VERSION,
        frontend_image=defaults.frontend_image,
        worker_image=defaults.worker_image,
    )
    frontend_image = spec.engine.images.frontend or pin.frontend_image
    worker_image = spec.engine.images.worker or pin.worker_image
    served_name = spec.model.served_name or service.name
    is_split = spec.topology is Topology.SPLIT
    cohort = cohort_hash(spec, template_version=pin.template_version, worker_image=worker_image)
    return Resolved(
        name=service.name,
        namespace=service.namespace,
        uid=service.uid,
        generation=service.generation,
        spec=spec,
        tokenizer=(spec.tokenizer or Tokenizer()) if is_split else None,
        served_name=served_name,
        frontend_image=frontend_image,
        worker_image=worker_image,
        pinned=pin,
        revision=revision_hash(spec, cohort=cohort, served_name=served_name),
        cohort=cohort,
    )
