"""Owns the Deployment of tokenizer pods of topology Split.

Does not own the Service in front of them (``services``).
"""

from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import tokenizer_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.render.pod_template import with_pod_template
from mizzen_operator.render.worker_args import tokenizer_args
from mizzen_operator.spec.model import Tokenizer
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import (
    CURVE_CLIENT_PUBLIC,
    CURVE_CLIENT_SECRET,
    CURVE_SERVER_PUBLIC,
    DRAIN_FINISH,
    ENV_COHORT,
    ENV_INSTANCE_ID,
    ENV_ROLE,
    PORT_HTTP,
    VERB_TOKENIZER,
)

DEFAULT_REQUESTS = {"cpu": "250m", "memory": "512Mi"}
KEY_FILES = (CURVE_CLIENT_SECRET, CURVE_CLIENT_PUBLIC, CURVE_SERVER_PUBLIC)


def tokenizer_deployment(resolved: Resolved, tokenizer: Tokenizer) -> dict[str, Any]:
    """The Deployment; old pods stay until new ones are ready."""
    own = {labels.COHORT: resolved.cohort, **labels.of_keys(resolved.key_generation)}
    template = {
        "metadata": {"labels": {**labels.common(resolved, labels.ROLE_TOKENIZER), **own}},
        "spec": pod.pod_spec(resolved, _container(resolved, tokenizer)),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(
            resolved, tokenizer_name(resolved), role=labels.ROLE_TOKENIZER, extra_labels=own
        ),
        "spec": {
            "replicas": resolved.tokenizers,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": labels.role_selector(resolved, labels.ROLE_TOKENIZER)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": with_pod_template(template, tokenizer.pod_template),
        },
    }


def _container(resolved: Resolved, tokenizer: Tokenizer) -> pod.Container:
    pairs = [
        pod.weights_volume(resolved),
        pod.scratch_volume("tmp", "/tmp", "1Gi"),
        pod.keys_volume(resolved, KEY_FILES),
    ]
    return pod.Container(
        image=resolved.frontend_image,
        verb=VERB_TOKENIZER,
        drain_mode=DRAIN_FINISH,
        args=tokenizer_args(resolved),
        env=(
            pod.value_env(ENV_ROLE, labels.ROLE_TOKENIZER),
            pod.field_env(ENV_INSTANCE_ID, "metadata.uid"),
            pod.value_env(ENV_COHORT, resolved.cohort),
            pod.value_env("HOME", "/tmp"),
        ),
        ports=(pod.port(pod.PORT_NAME_HTTP, PORT_HTTP), pod.admin_port()),
        resources=pod.container_resources(tokenizer.resources, DEFAULT_REQUESTS, {}),
        volumes=tuple(volume for volume, _ in pairs),
        mounts=tuple(mount for _, mount in pairs),
    )
