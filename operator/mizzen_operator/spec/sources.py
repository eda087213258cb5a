"""Owns the part of the spec that says where weights come from and where they are kept.

Does not own rules across fields (``rules``) nor what a source means to the Job (``weights``).
"""

from typing import Annotated, Literal

from pydantic import Field

from mizzen_operator.spec.fields import ObjectName, Quantity, StrictModel
from mizzen_operator.spec.resources import Resources

ENDPOINT_PATTERN = (
    r"^https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[-A-Za-z0-9._/]*)?$"
)
REPOSITORY_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._]{0,95}/[A-Za-z0-9][-A-Za-z0-9._]{0,95}$"
HUB_REVISION_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._/]*$"
BUCKET_PATTERN = r"^[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]$"
PREFIX_PATTERN = r"^([A-Za-z0-9_=+][-A-Za-z0-9._=+]*(/[A-Za-z0-9_=+][-A-Za-z0-9._=+]*)*/?)?$"
REGION_PATTERN = r"^[a-z0-9][-a-z0-9]*$"
ARTIFACT_PATTERN = (
    r"^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
GLOB_PATTERN = r"^[A-Za-z0-9*?\[][-A-Za-z0-9._*?/\[\]]*$"

Endpoint = Annotated[str, Field(pattern=ENDPOINT_PATTERN, max_length=512)]
InnerPath = Annotated[str, Field(max_length=512)]
Globs = Annotated[
    tuple[Annotated[str, Field(pattern=GLOB_PATTERN, max_length=256)], ...], Field(max_length=16)
]


class PvcSource(StrictModel):
    """Weights on an existing PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim, in the namespace of the InferenceService."""
    path: InnerPath = ""
    """File (GGUF) or folder (safetensors) of the model inside the claim; empty for its root."""


class SecretKey(StrictModel):
    """One entry of a Secret in the service's namespace; the operator never reads it."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(pattern=r"^[-A-Za-z0-9._]+$", min_length=1, max_length=253)]
    """Entry of the Secret that holds the value."""


class CredentialsSecret(StrictModel):
    """A Secret in the service's namespace; the operator never reads it."""

    name: ObjectName
    """Name of the Secret."""


class FetchedSource(StrictModel):
    """What all sources have in common that a Job fetches into a claim."""

    files: Globs = ()
    """Fetch only files that match one of these globs, such as *Q4_K_M.gguf; all that a model needs
    when absent."""
    path: InnerPath = ""
    """File (GGUF) or folder of the model inside what is fetched; empty for its root."""


class HuggingFaceSource(FetchedSource):
    """A repository of a Hugging Face hub, fetched once by a Job."""

    repository: Annotated[str, Field(pattern=REPOSITORY_PATTERN, max_length=193)]
    """Name of the repository: organisation/name."""
    revision: Annotated[str, Field(pattern=HUB_REVISION_PATTERN, min_length=1, max_length=255)] = (
        "main"
    )
    """Branch, tag or commit. A branch or tag is resolved to a commit once, when it is fetched."""
    endpoint: Endpoint | None = None
    """Address of a mirror of the hub; the public hub when absent."""
    token_secret_ref: SecretKey | None = None
    """Token for gated and private repositories."""


class S3Source(FetchedSource):
    """Objects below a prefix of an S3 bucket, fetched once by a Job."""

    bucket: Annotated[str, Field(pattern=BUCKET_PATTERN, max_length=63)]
    """Name of the bucket."""
    prefix: Annotated[str, Field(pattern=PREFIX_PATTERN, max_length=512)] = ""
    """Folder in the bucket that holds the model; empty for the whole bucket."""
    endpoint: Endpoint | None = None
    """Address of an S3 server (path style); Amazon's when absent."""
    region: Annotated[str | None, Field(pattern=REGION_PATTERN, min_length=1, max_length=64)] = None
    """Region of the bucket."""
    credentials_secret_ref: CredentialsSecret | None = None
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if need be, AWS_SESSION_TOKEN."""


class OciSource(FetchedSource):
    """An artifact or image of an OCI registry whose layers hold the model, fetched by a Job."""

    image: Annotated[str, Field(pattern=ARTIFACT_PATTERN, max_length=512)]
    """registry/name:tag or registry/name@sha256:digest. A tag is resolved to a digest once."""
    credentials_secret_ref: CredentialsSecret | None = None
    """Secret of type kubernetes.io/basic-auth (username, password) for the registry."""


class ModelSource(StrictModel):
    """Where the weights come from; exactly one of the fields."""

    pvc: PvcSource | None = None
    """An existing claim that holds the weights."""
    hugging_face: HuggingFaceSource | None = None
    """A repository of a Hugging Face hub; needs model.cache."""
    s3: S3Source | None = None
    """An S3 bucket; needs model.cache."""
    oci: OciSource | None = None
    """An artifact of an OCI registry; needs model.cache."""

    @property
    def fetched(self) -> HuggingFaceSource | S3Source | OciSource | None:
        """The source that a Job fetches; None for a claim."""
        return self.hugging_face or self.s3 or self.oci


class Cache(StrictModel):
    """The claim that fetched weights are kept on, made by the operator. A change of size,
    storageClassName, accessMode or refresh makes another claim, which is fetched into, and a new
    revision."""

    size: Quantity
    """Size of the claim; the weights and some room, for nothing else is written there."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the claim; the cluster's default when absent."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """ReadWriteMany: pods on any node mount it. ReadWriteOnce: one node at a time, so only for
    topology Unified with one replica and without surge."""
    retain: bool = False
    """Keep the claim when the service is deleted or needs it no more; delete it by hand then."""
    refresh: Annotated[str, Field(pattern=r"^([A-Za-z0-9][-A-Za-z0-9._:]*)?$", max_length=63)] = ""
    """Any text. Another text fetches what the branch or tag means now, into another claim, and
    then rolls the service to it."""
    resources: Resources = Field(default_factory=Resources)
    """Resources of the Job's pod."""
