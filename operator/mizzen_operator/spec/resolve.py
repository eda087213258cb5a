"""Owns filling in what a spec leaves open: images, template version, revision, cohort.

Does not own validation (``validate``) nor schema defaults (``model``). Pure: what the operator was
installed with and what was pinned earlier are arguments.
"""

from dataclasses import dataclass, replace

from mizzen_operator.spec.gpu_classes import GpuClass
from mizzen_operator.spec.model import (
    MAX_REPLICAS,
    MAX_TOKENIZERS,
    InferenceService,
    Spec,
    Tokenizer,
    Topology,
)
from mizzen_operator.spec.revision import cohort_hash, key_generation, revision_hash
from mizzen_operator.spec.scale import RoleScale, ScaleBounds

TEMPLATE_VERSION = "v1"
"""Version of the pods of new services; a change of what is rendered for equal input needs a new
one, beside the old ones in ``render/templates``."""


WORKER_BOUNDS = ScaleBounds(lowest=0, highest=MAX_REPLICAS)
UNSHARED_WORKER_BOUNDS = ScaleBounds(
    lowest=0,
    highest=1,
    because="its spec.model.cache.accessMode lets one pod mount the weights, ReadWriteMany all",
)
TOKENIZER_BOUNDS = ScaleBounds(lowest=1, highest=MAX_TOKENIZERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the operator's own configuration decides for services that leave it open."""

    frontend_image: str
    worker_image: str
    template_version: str = TEMPLATE_VERSION
    pull_secrets: tuple[str, ...] = ()
    """Secrets with registry credentials, for services that name none."""
    gpu_classes: tuple[GpuClass, ...] = ()
    """Classes of GPUs beside the common ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Defaults that a revision began with; they outlive an upgrade of the operator.

    One unit, because a later template may ask what an earlier image cannot do.
    """

    template_version: str
    frontend_image: str
    worker_image: str


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
    """Operator defaults in force, to be stored with the revision."""
    offered: Pinned
    """Operator defaults that a service gets that follows; the same if this one does."""
    revision: str
    """Six characters that name the worker pods' template."""
    cohort: str
    """Six characters equal for pods that may work together."""
    worker_scale: RoleScale
    """Of the role scaler where it is known, else the service's own field."""
    tokenizer_scale: RoleScale
    """The same; without meaning in topology Unified."""
    account_pull_secrets: tuple[str, ...] = ()
    """Of the pods' ServiceAccount: what pods get that name none themselves. Not pinned, for no pod
    template has them."""
    gpu_classes: tuple[GpuClass, ...] = ()
    """Classes of GPUs beside the common ones; shape no pod either."""

    @property
    def groups(self) -> int:
        """Worker groups wanted."""
        return 0 if self.spec.stopped else self.worker_bounds.granted(self.worker_scale.asked)

    @property
    def worker_bounds(self) -> ScaleBounds:
        """What its worker groups may be scaled to; the rules hold the service's own field to it."""
        cache = self.spec.model.cache
        is_shared = cache is None or cache.access_mode == "ReadWriteMany"
        return WORKER_BOUNDS if is_shared else UNSHARED_WORKER_BOUNDS

    @property
    def tokenizers(self) -> int:
        """Tokenizer pods wanted."""
        if self.tokenizer is None or self.spec.stopped:
            return 0
        return TOKENIZER_BOUNDS.granted(self.tokenizer_scale.asked)

    @property
    def key_generation(self) -> str:
        """Which CURVE keys its pods have; empty for those that a service begins with."""
        return key_generation(self.spec)

    @property
    def nodes(self) -> int:
        """Pods of one group."""
        return self.spec.worker.parallelism.nodes


def resolve(
    service: InferenceService, defaults: Defaults, pinned: Pinned | None = None
) -> Resolved:
    """Fill in what is open; ``pinned`` wins over ``defaults`` unless told to follow."""
    offered = Pinned(
        template_version=defaults.template_version,
        frontend_image=defaults.frontend_image,
        worker_image=defaults.worker_image,
    )
    keep = pinned if service.spec.update_policy == "Pinned" else None
    return replace(
        resolve_with(service, keep or offered),
        offered=offered,
        account_pull_secrets=defaults.pull_secrets,
        gpu_classes=defaults.gpu_classes,
    )


def resolve_with(service: InferenceService, pin: Pinned) -> Resolved:
    """Fill in what is open from exactly this pin."""
    spec = service.spec
    frontend_image = spec.engine.images.frontend or pin.frontend_image
    worker_image = spec.engine.images.worker or pin.worker_image
    served_name = spec.model.served_name or service.name
    is_split = spec.topology is Topology.SPLIT
    tokenizer = spec.tokenizer or Tokenizer()
    cohort = cohort_hash(spec, template_version=pin.template_version, worker_image=worker_image)
    return Resolved(
        name=service.name,
        namespace=service.namespace,
        uid=service.uid,
        generation=service.generation,
        spec=spec,
        tokenizer=tokenizer if is_split else None,
        served_name=served_name,
        frontend_image=frontend_image,
        worker_image=worker_image,
        pinned=pin,
        offered=pin,
        revision=revision_hash(spec, cohort=cohort, served_name=served_name),
        cohort=cohort,
        worker_scale=RoleScale(asked=spec.replicas, propagated=spec.replicas),
        tokenizer_scale=RoleScale(asked=tokenizer.replicas, propagated=tokenizer.replicas),
    )
