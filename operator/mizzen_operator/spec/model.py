"""Owns the typed InferenceService: every field, its bounds, default and meaning; source of the CRD.

Does not own rules across fields (``rules``), nor defaults that come from the operator's own
configuration (``resolve``). Docstrings of fields become the descriptions that ``kubectl explain``
prints.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from mizzen_operator.spec.fields import (
    CountOrPercent,
    ImageName,
    NotAvailable,
    ObjectName,
    Quantity,
    ResourceName,
    StrictModel,
)

GROUP = "serving.mizzen.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
SINGULAR = "inferenceservice"
SHORT_NAME = "misvc"


class Topology(StrEnum):
    """Shape of a service."""

    UNIFIED = "Unified"
    SPLIT = "Split"
    DISAGGREGATED = "Disaggregated"


AVAILABLE_TOPOLOGIES = (Topology.UNIFIED, Topology.SPLIT)
"""Those of this version; the schema names the reserved one too."""


class PvcSource(StrictModel):
    """Weights on an existing PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim, in the namespace of the InferenceService."""
    path: Annotated[str, Field(max_length=512)] = ""
    """File (GGUF) or folder (safetensors) of the model inside the claim; empty for its root."""


class ModelSource(StrictModel):
    """Where the weights come from; exactly one of the fields."""

    pvc: PvcSource | None = None
    """An existing claim that holds the weights."""
    hugging_face: NotAvailable = None
    """Not available in this version."""
    s3: NotAvailable = None
    """Not available in this version."""
    oci: NotAvailable = None
    """Not available in this version."""


class Model(StrictModel):
    """The model to serve."""

    served_name: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./:]*$", min_length=1, max_length=128)
    ] = None
    """Name that clients put into "model"; the name of the InferenceService when absent."""
    source: ModelSource
    """Where the weights come from."""
    cache: NotAvailable = None
    """Not available in this version."""


class Images(StrictModel):
    """Container images; each defaults to the one the operator was installed with."""

    frontend: ImageName | None = None
    """Image of tokenizer pods (topology Split)."""
    worker: ImageName | None = None
    """Image of worker pods, and of the pods of topology Unified."""


class EnvVar(StrictModel):
    """One environment variable of the engine's container."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]
    """Name; MIZZEN_* belongs to the operator."""
    value: Annotated[str, Field(max_length=2048)] = ""
    """Value, taken literally."""


class PullSecret(StrictModel):
    """Name of a Secret with registry credentials, in the service's namespace."""

    name: ObjectName
    """Name of the Secret, of type kubernetes.io/dockerconfigjson."""


class Engine(StrictModel):
    """What every engine process of the service shares."""

    images: Images = Field(default_factory=Images)
    """Container images."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the kubelet pulls the images."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = ()
    """Registry credentials for the images."""
    args: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=512)], ...], Field(max_length=64)
    ] = ()
    """More command-line arguments of the engine; flags that the operator sets are refused."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=32)] = ()
    """More environment variables of the engine's container."""
    context_length: Annotated[int | None, Field(ge=1, le=16_777_216)] = None
    """Longest prompt plus answer in tokens; the model's own limit when absent."""
    page_size: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Tokens per page of KV memory; chosen by the engine when absent."""
    kv_tokens: Annotated[int | None, Field(ge=16, le=1_073_741_824)] = None
    """Tokens that fit into KV memory; the engine's default when absent."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of weights and activations."""
    startup_deadline_seconds: Annotated[int, Field(ge=60, le=14_400)] = 3600
    """Longest time from a container's start until the model is loaded; then it is restarted."""


class Resources(StrictModel):
    """Resources of one container; GPUs are set by worker.gpu."""

    requests: Annotated[dict[ResourceName, Quantity], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """What the scheduler reserves."""
    limits: Annotated[dict[ResourceName, Quantity], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """What the container may use; the CPU limit also sets the engine's number of threads."""


class Tokenizer(StrictModel):
    """Tokenizer pods of topology Split: HTTP, tokenizing and choice of worker, no GPU."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of tokenizer pods."""
    resources: Resources = Field(default_factory=Resources)
    """Resources of each tokenizer pod."""
    scaling: NotAvailable = None
    """Not available in this version."""
    pod_template: NotAvailable = None
    """Not available in this version."""


class Parallelism(StrictModel):
    """How one copy of the model is spread; a change makes a new revision."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor parallel ranks."""
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline stages."""
    data: Annotated[int, Field(ge=1, le=64)] = 1
    """Data parallel ranks inside one group."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods (one per node) of one group."""


class Gpu(StrictModel):
    """GPUs of each worker pod."""

    resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource to ask for."""
    count_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of each pod; 0 runs the model on the CPU."""


class Rollout(StrictModel):
    """How a new revision replaces the old one, counted in groups."""

    max_surge: CountOrPercent = 0
    """Groups beyond replicas while rolling; a percentage is rounded up."""
    max_unavailable: CountOrPercent = 1
    """Groups that may be missing while rolling; a percentage is rounded down."""


class Drain(StrictModel):
    """How a group is emptied before it ends."""

    timeout_seconds: Annotated[int, Field(ge=0, le=3600)] = 300
    """Longest time for running requests to end or to move on."""


class Worker(StrictModel):
    """Worker groups: each group holds one copy of the model."""

    parallelism: Parallelism = Field(default_factory=Parallelism)
    """How one copy of the model is spread."""
    gpu: Gpu = Field(default_factory=Gpu)
    """GPUs of each pod."""
    resources: Resources = Field(default_factory=Resources)
    """CPU and memory of each pod."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How a new revision replaces the old one."""
    drain: Drain = Field(default_factory=Drain)
    """How a group is emptied before it ends."""
    scheduling: NotAvailable = None
    """Not available in this version."""
    restart: NotAvailable = None
    """Not available in this version."""
    pod_template: NotAvailable = None
    """Not available in this version."""


class ServicePort(StrictModel):
    """The Kubernetes Service that clients talk to; it has the name of the InferenceService."""

    type: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """Port of the Service."""


class Routing(StrictModel):
    """How clients reach the service."""

    service: ServicePort = Field(default_factory=ServicePort)
    """The Service."""
    http_route: NotAvailable = None
    """Not available in this version."""
    inference_pool: NotAvailable = None
    """Not available in this version."""


class Spec(StrictModel):
    """What the user wants."""

    topology: Topology = Topology.UNIFIED
    """Unified: each pod serves everything. Split: tokenizer pods and worker groups.
    Disaggregated: not available in this version. A change interrupts the service until pods of
    the new shape are ready."""
    replicas: Annotated[int, Field(ge=0, le=999)] = 1
    """Number of worker groups; also set by kubectl scale."""
    paused: bool = False
    """Leave every object as it is; only the status is kept up to date."""
    stopped: bool = False
    """Run no pods, but keep the Services and everything else."""
    update_policy: Literal["Pinned", "Follow"] = "Pinned"
    """Whether default images stay as they were when the service was created (Pinned), or follow
    the operator's (Follow), which rolls the service at an upgrade of the operator."""
    model: Model
    """The model to serve."""
    engine: Engine = Field(default_factory=Engine)
    """What every engine process shares."""
    tokenizer: Tokenizer | None = None
    """Tokenizer pods; topology Split only."""
    worker: Worker = Field(default_factory=Worker)
    """Worker groups; in topology Unified the pods that do everything."""
    routing: Routing = Field(default_factory=Routing)
    """How clients reach the service."""
    network_policy: Literal["Restricted", "Off"] = "Restricted"
    """Restricted: a NetworkPolicy allows only the connections that the service needs."""
    prefill: NotAvailable = None
    """Not available in this version."""
    decode: NotAvailable = None
    """Not available in this version."""
    disaggregation: NotAvailable = None
    """Not available in this version."""
    kv_cache: NotAvailable = None
    """Not available in this version."""
    scaling: NotAvailable = None
    """Not available in this version."""
    runtime_ref: NotAvailable = None
    """Not available in this version."""
    observability: NotAvailable = None
    """Not available in this version."""


class InferenceService(StrictModel):
    """One InferenceService as read from the API server or a file."""

    name: str
    namespace: str
    uid: str
    """Empty for an object that is only in a file."""
    generation: int
    spec: Spec
