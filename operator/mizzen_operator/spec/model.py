"""Owns the typed InferenceService: every field, its bounds, default and meaning; source of the CRD.

Does not own rules across fields (``rules``), nor defaults that come from the operator's own
configuration (``resolve``). Docstrings of fields become the descriptions that ``kubectl explain``
prints.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from mizzen_operator.spec.fields import (
    GPU_CLASS_PATTERN,
    CountOrPercent,
    ExtendedResourceName,
    ImageName,
    LabelKey,
    LabelValue,
    NotAvailable,
    ObjectName,
    PodTemplate,
    Quantity,
    ScrapeInterval,
    StrictModel,
)
from mizzen_operator.spec.resources import Resources
from mizzen_operator.spec.routing import Routing
from mizzen_operator.spec.sources import Cache, ModelSource

GROUP = "serving.mizzen.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
SINGULAR = "inferenceservice"
SHORT_NAME = "misvc"
MAX_REPLICAS = 999
MAX_TOKENIZERS = 100


class Topology(StrEnum):
    """Shape of a service."""

    UNIFIED = "Unified"
    SPLIT = "Split"
    DISAGGREGATED = "Disaggregated"


AVAILABLE_TOPOLOGIES = (Topology.UNIFIED, Topology.SPLIT)
"""Those of this version; the schema names the reserved one too."""


class Model(StrictModel):
    """The model to serve."""

    served_name: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./:]*$", min_length=1, max_length=128)
    ] = None
    """Name that clients put into "model"; the name of the InferenceService when absent."""
    source: ModelSource
    """Where the weights come from."""
    cache: Cache | None = None
    """Where weights that are fetched are kept; needed by every source but pvc."""


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


class Tokenizer(StrictModel):
    """Tokenizer pods of topology Split: HTTP, tokenizing and choice of worker, no GPU."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TOKENIZERS)] = 2
    """Number of tokenizer pods to begin with. A later change is passed on to the
    InferenceRoleScaler NAME-tokenizer once; between changes that object is what counts."""
    resources: Resources = Field(default_factory=Resources)
    """Resources of each tokenizer pod."""
    scaling: NotAvailable = None
    """Not available in this version."""
    pod_template: PodTemplate = None
    """A Kubernetes pod template (metadata, spec) that is merged over the tokenizer pods, as
    worker.podTemplate is over worker pods."""


class Parallelism(StrictModel):
    """How one copy of the model is spread; a change makes a new revision."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor parallel ranks: each holds a part of every layer, on a GPU of its own if there are
    GPUs."""
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Pipeline stages; more than 1 is not available in this version."""
    data: Annotated[int, Field(ge=1, le=64)] = 1
    """Data parallel ranks inside one group, a whole copy of the model each; in one pod only in this
    version."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods of one group, on nodes of their own; each runs tensor / nodes ranks. More than 1 takes
    topology Split."""


class Gpu(StrictModel):
    """GPUs of each worker pod."""

    resource_name: ExtendedResourceName = "nvidia.com/gpu"
    """Extended resource to ask for, domain/name."""
    count_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    """GPUs of each pod; 0 runs the model on the CPU."""
    class_name: Annotated[
        str | None, Field(alias="class", pattern=GPU_CLASS_PATTERN, min_length=1, max_length=63)
    ] = None
    """Name of a GPU whose memory the operator knows, such as nvidia-l4: condition Fits then tells
    whether weights that are fetched fit, and no pods are made where they do not. It chooses no
    node."""
    memory: Quantity | None = None
    """The same for a GPU without a class: memory of one GPU, such as 80Gi."""


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


class Restart(StrictModel):
    """When a group of several pods starts anew as a whole, because one of its pods was lost, and
    when a pod on a node that does not answer is given up."""

    backoff_base_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    """Wait before the second restart in a row, doubled for each further one; the first one is
    made at once."""
    backoff_max_seconds: Annotated[int, Field(ge=1, le=3600)] = 600
    """Longest wait before a restart."""
    max_restarts: Annotated[int, Field(ge=1, le=100)] = 8
    """Restarts of one group within the window; then it is left as it is for a person to see."""
    window_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600
    """Time within which restarts are counted."""
    node_lost_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    """How long a node may fail to confirm that a deleted pod has ended; then the pod is removed by
    force, so that its group can start elsewhere."""


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
    restart: Restart = Field(default_factory=Restart)
    """When a group starts anew, and when lost pods are given up."""
    scheduling: NotAvailable = None
    """Not available in this version."""
    pod_template: PodTemplate = None
    """A Kubernetes pod template (metadata, spec) that is merged over the worker pods: lists of
    named items by name, such as containers and volumes; to other lists its items are added. Of the
    engine's own container, mizzen, only env and volumeMounts may be given. What serving rests on
    and what a restricted pod may not do is refused; the API server is asked about the rest before
    anything is changed. A change makes a new revision."""


class Observability(StrictModel):
    """Objects for the Prometheus Operator and Grafana of the cluster; all of them unless one is
    switched off. Where an API is not installed, condition MonitoringReady says so."""

    pod_monitor: bool = True
    """A PodMonitor that scrapes all pods of the service."""
    rules: bool = True
    """A PrometheusRule with alerts; it needs the labels that the PodMonitor sets."""
    dashboard: bool = True
    """A ConfigMap with a Grafana dashboard, labelled grafana_dashboard; it needs them too."""
    interval: ScrapeInterval = "15s"
    """Time between two scrapes of a pod: whole seconds from 1s to 60s."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """More labels of the objects, by which your Prometheus and Grafana find them."""
    prometheus_namespace: ObjectName | None = None
    """Namespace of the Prometheus that scrapes; the service's NetworkPolicy lets it in. Without it
    a NetworkPolicy of your own has to."""
    traces: NotAvailable = None
    """Not available in this version."""


class Security(StrictModel):
    """How pods of the service trust each other."""

    key_rotation: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    """Any text that was not used before, such as a date in quotes: another text gives tokenizer
    and worker pods new CURVE keys, by a roll-out; the Secret with the former keys is deleted when
    the last pod that uses them has ended. Topology Split only."""


class Spec(StrictModel):
    """What the user wants."""

    topology: Topology = Topology.UNIFIED
    """Unified: each pod serves everything. Split: tokenizer pods and worker groups.
    Disaggregated: not available in this version. A change interrupts the service until pods of
    the new shape are ready."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Number of worker groups to begin with. A later change, by kubectl scale too, is passed on to
    the InferenceRoleScaler NAME-worker once; between changes that object is what counts."""
    paused: bool = False
    """Leave every object as it is; only the status is kept up to date."""
    stopped: bool = False
    """Run no pods, but keep the Services and everything else."""
    update_policy: Literal["Pinned", "Follow"] = "Pinned"
    """Whether default images and the way pods are rendered stay as they were when the service was
    created (Pinned), or follow the operator's (Follow), which rolls the service at an upgrade of
    the operator. An earlier spec that is applied again gets back what it was rendered with."""
    revision_history_limit: Annotated[int, Field(ge=0, le=50)] = 5
    """Stored revisions (ControllerRevisions) that are kept although no pod uses them any more, to
    go back to; the oldest go first."""
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
    """Restricted: a NetworkPolicy allows only the connections that the service needs. Write "Off"
    in quotes: YAML reads the bare word as false."""
    security: Security = Field(default_factory=Security)
    """How pods of the service trust each other."""
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
    observability: Observability | None = None
    """Metrics to be scraped, alerts and a dashboard; nothing of it when absent."""


class InferenceService(StrictModel):
    """One InferenceService as read from the API server or a file."""

    name: str
    namespace: str
    uid: str
    """Empty for an object that is only in a file."""
    generation: int
    spec: Spec
