"""Owns the objects that fetch weights: the claim, the Job that fills it, its NetworkPolicy.

Does not own when they are wanted (``planner/weights``) nor the volume in the pods that serve
(``pod``). Invariants: a claim's content never changes once it is whole, because another source is
another claim; at most one pod writes to it.
"""

from dataclasses import dataclass
from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import fetch_name, fetch_policy_name, weights_name
from mizzen_operator.render.network_policy import policy
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.sources import Cache, HuggingFaceSource, OciSource, S3Source
from mizzen_operator.spec.weights import Fetched, endpoint_of, ports_of, source_url
from mizzen_operator.worker_contract import (
    CONTAINER,
    FETCH_ARG_ALLOW,
    FETCH_ARG_METRICS_PORT,
    FETCH_ARG_REVISION,
    FETCH_ARG_TO,
    FETCH_ENV_HUB_ENDPOINT,
    FETCH_ENV_HUB_TOKEN,
    FETCH_ENV_OCI_PASSWORD,
    FETCH_ENV_OCI_USERNAME,
    FETCH_ENV_S3_ENDPOINT,
    FETCH_ENV_S3_KEY,
    FETCH_ENV_S3_KEY_ID,
    FETCH_ENV_S3_REGION,
    FETCH_ENV_S3_SESSION,
    FETCH_EXIT_FAILED,
    PORT_ADMIN,
    VERB_FETCH,
)

DEFAULT_REQUESTS = {"cpu": "500m", "memory": "512Mi"}
BACKOFF_LIMIT = 6
"""Pods that may fail with "try again" before the Job fails; each waits for its own rate limits."""
GRACE_S = 30
"""What is fetched stays, so a pod has nothing to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """What the planner decided about fetched weights, as far as objects depend on it."""

    has_claim: bool = True
    """The claim is to be applied."""
    storage: str = ""
    """Quantity that the live claim asks for, which may have been raised by hand; empty: none."""
    has_job: bool = True
    """The Job is to be applied."""
    pinned: str = ""
    """Revision that was fetched before and must be fetched again; empty: what the spec says."""


EVERYTHING = FetchContext()
"""Before anything is there."""


def weights_objects(resolved: Resolved, context: FetchContext) -> list[dict[str, Any]]:
    """The objects for a source that is fetched; none for a claim of the user's."""
    source, cache = resolved.spec.model.source.fetched, resolved.spec.model.cache
    if source is None or cache is None:
        return []
    restricted = resolved.spec.network_policy == "Restricted"
    return [
        *([_network_policy(resolved, source)] if restricted else []),
        *([_claim(resolved, cache, context.storage)] if context.has_claim else []),
        *([fetch_job(resolved, source, cache, context.pinned)] if context.has_job else []),
    ]


def fetch_job_name(resolved: Resolved, pinned: str) -> str:
    """Name that the Job has now; empty for a claim of the user's."""
    source, cache = resolved.spec.model.source.fetched, resolved.spec.model.cache
    if source is None or cache is None:
        return ""
    return fetch_name(resolved, _job_spec(resolved, source, cache, pinned))


def fetch_job(resolved: Resolved, source: Fetched, cache: Cache, pinned: str) -> dict[str, Any]:
    """The Job; whoever deletes it has it made anew, unless the weights are there."""
    spec = _job_spec(resolved, source, cache, pinned)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(
            resolved,
            fetch_name(resolved, spec),
            role=labels.ROLE_WEIGHTS,
            extra_labels=_own_labels(resolved),
        ),
        "spec": spec,
    }


def _own_labels(resolved: Resolved) -> dict[str, str]:
    return {labels.WEIGHTS: weights_name(resolved)}


def _claim(resolved: Resolved, cache: Cache, storage: str) -> dict[str, Any]:
    frame = metadata(
        resolved,
        weights_name(resolved),
        role=labels.ROLE_WEIGHTS,
        extra_labels=_own_labels(resolved),
    )
    if cache.retain:
        del frame["ownerReferences"]
        frame["annotations"] = {labels.RETAINED_FOR: resolved.uid}
    of_class = (
        {} if cache.storage_class_name is None else {"storageClassName": cache.storage_class_name}
    )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": frame,
        "spec": {
            "accessModes": [cache.access_mode],
            **of_class,
            "resources": {"requests": {"storage": storage or cache.size}},
        },
    }


def _job_spec(resolved: Resolved, source: Fetched, cache: Cache, pinned: str) -> dict[str, Any]:
    own = {**labels.common(resolved, labels.ROLE_WEIGHTS), **_own_labels(resolved)}
    pairs = [
        pod.weights_volume(resolved, read_only=False),
        pod.scratch_volume("tmp", "/tmp", "1Gi"),
    ]
    container = {
        "name": CONTAINER,
        "image": resolved.worker_image,
        "imagePullPolicy": resolved.spec.engine.image_pull_policy,
        "command": [pod.COMMAND, VERB_FETCH],
        "args": [pod.literal(text) for text in _args(source, pinned)],
        "env": _env(source),
        "ports": [pod.admin_port()],
        "resources": pod.container_resources(cache.resources, DEFAULT_REQUESTS, {}),
        "volumeMounts": [mount for _, mount in pairs],
        "securityContext": pod.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec = pod.framed(
        resolved, container, grace_s=GRACE_S, volumes=tuple(volume for volume, _ in pairs)
    )
    return {
        "backoffLimit": BACKOFF_LIMIT,
        "podFailurePolicy": {"rules": _failure_rules()},
        "podReplacementPolicy": "Failed",
        "template": {
            "metadata": {"labels": own},
            "spec": {"restartPolicy": "Never", **spec},
        },
    }


def _failure_rules() -> list[dict[str, Any]]:
    """An eviction is no fault of the download; all other ends count against the back-off."""
    exit_codes = {
        "containerName": CONTAINER,
        "operator": "In",
        "values": [FETCH_EXIT_FAILED],
    }
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "Ignore", "onPodConditions": evicted},
        {"action": "FailJob", "onExitCodes": exit_codes},
    ]


def _args(source: Fetched, pinned: str) -> list[str]:
    revision = (
        [FETCH_ARG_REVISION, pinned or source.revision]
        if isinstance(source, HuggingFaceSource)
        else []
    )
    globs = [text for glob in source.files for text in (FETCH_ARG_ALLOW, glob)]
    return [
        *(FETCH_ARG_TO, pod.DIR_MODELS, FETCH_ARG_METRICS_PORT, str(PORT_ADMIN)),
        *revision,
        *globs,
        source_url(source, pinned),
    ]


def _env(source: Fetched) -> list[dict[str, Any]]:
    home = pod.value_env("HOME", "/tmp")
    endpoint = endpoint_of(source)
    if isinstance(source, HuggingFaceSource):
        at = [pod.value_env(FETCH_ENV_HUB_ENDPOINT, endpoint)] if endpoint else []
        token = source.token_secret_ref
        secret = [pod.secret_env(FETCH_ENV_HUB_TOKEN, token.name, token.key)] if token else []
        return [home, *at, *secret]
    if isinstance(source, S3Source):
        at = [pod.value_env(FETCH_ENV_S3_ENDPOINT, endpoint)] if endpoint else []
        region = [pod.value_env(FETCH_ENV_S3_REGION, source.region)] if source.region else []
        return [home, *at, *region, *_s3_credentials(source)]
    return [home, *_registry_credentials(source)]


def _s3_credentials(source: S3Source) -> list[dict[str, Any]]:
    if source.credentials_secret_ref is None:
        return []
    name = source.credentials_secret_ref.name
    session = FETCH_ENV_S3_SESSION
    return [
        *(pod.secret_env(key, name, key) for key in (FETCH_ENV_S3_KEY_ID, FETCH_ENV_S3_KEY)),
        pod.secret_env(session, name, session, is_optional=True),
    ]


def _registry_credentials(source: OciSource) -> list[dict[str, Any]]:
    if source.credentials_secret_ref is None:
        return []
    name = source.credentials_secret_ref.name
    return [
        pod.secret_env(FETCH_ENV_OCI_USERNAME, name, "username"),
        pod.secret_env(FETCH_ENV_OCI_PASSWORD, name, "password"),
    ]


def _network_policy(resolved: Resolved, source: Fetched) -> dict[str, Any]:
    """Where files lie is known by port only: a hub sends the reader on to any host."""
    ports = [{"port": number, "protocol": "TCP"} for number in ports_of(source)]
    return policy(
        resolved,
        labels.ROLE_WEIGHTS,
        fetch_policy_name(resolved),
        ingress=[],
        egress=[{"ports": ports}],
    )
