"""From a complaint about a pod back to the field of the spec, where there is one."""

from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.errors import Problem
from mizzen_operator.render.origin import template_problem
from mizzen_operator.render.render import rendered_tokenizer, rendered_worker_group
from mizzen_operator.spec.resolve import Resolved

SPEC: dict[str, Any] = {
    "topology": "Split",
    "tokenizer": {"resources": {"limits": {"memory": "1Gi"}}},
    "engine": {
        "env": [{"name": "SEED", "value": "7"}],
        "imagePullSecrets": [{"name": "registry"}],
        "args": ["--seed", "7"],
        "images": {"worker": "w@x"},
    },
    "worker": {"gpu": {"countPerNode": 1}, "resources": {"limits": {"cpu": "4"}}},
}
SERVICE = resolved(**SPEC)


def problem(role: str, *paths: str, said: str = "no.", service: Resolved = SERVICE) -> Problem:
    assert service.tokenizer is not None
    owner = (
        rendered_worker_group(service, 0)
        if role == "worker"
        else rendered_tokenizer(service, service.tokenizer)
    )
    return template_problem(service, role, owner["spec"]["template"], said=said, paths=paths)


def env_index(name: str) -> int:
    (container,) = rendered_worker_group(SERVICE, 0)["spec"]["template"]["spec"]["containers"]
    return [item["name"] for item in container["env"]].index(name)


@pytest.mark.parametrize("prefix", ["", "spec.template."], ids=["pod", "owner"])
@pytest.mark.parametrize(
    ("role", "path", "field"),
    [
        ("worker", "spec.containers[0].resources.limits[cpu]", "spec.worker.resources.limits.cpu"),
        ("worker", "spec.containers[0].resources.limits[nvidia.com/gpu]", "spec.worker.gpu"),
        ("worker", "spec.containers[0].resources.requests.memory",
         "spec.worker.resources.requests.memory"),
        ("tokenizer", "spec.containers[0].resources.limits[memory]",
         "spec.tokenizer.resources.limits.memory"),
        ("worker", "spec.containers[0].resources.requests", "spec.worker.resources.requests"),
        ("worker", "spec.containers[0].resources", "spec.worker.resources"),
        ("worker", "spec.containers[0].image", "spec.engine.images.worker"),
        ("tokenizer", "spec.containers[0].image", "spec.engine.images.frontend"),
        ("worker", "spec.containers[0].imagePullPolicy", "spec.engine.imagePullPolicy"),
        ("worker", "spec.containers[0].args[3]", "spec.engine.args"),
        ("worker", "spec.imagePullSecrets[0].name", "spec.engine.imagePullSecrets"),
        ("worker", f"spec.containers[0].env[{env_index('SEED')}].value", "spec.engine.env[SEED]"),
        ("worker", "spec.containers[0].startupProbe.failureThreshold",
         "spec.engine.startupDeadlineSeconds"),
        ("worker", "spec.containers[0].lifecycle.preStop", "spec.worker.drain.timeoutSeconds"),
        ("worker", "spec.terminationGracePeriodSeconds", "spec.worker.drain.timeoutSeconds"),
        ("worker", "spec.volumes[0].persistentVolumeClaim.claimName", "spec.model.source.pvc"),
    ],
)  # fmt: skip
def test_a_path_of_the_pod_leads_to_its_field(
    role: str, path: str, field: str, prefix: str
) -> None:
    assert problem(role, f"{prefix}{path}").field == field


@pytest.mark.parametrize(
    "path",
    ["spec.securityContext.runAsUser", f"spec.containers[0].env[{env_index('HOME')}].name",
     "spec.containers[0].env[999].name", "metadata.labels"],
)  # fmt: skip
def test_what_the_operator_alone_wrote_leads_to_the_role(path: str) -> None:
    found = problem("worker", path)
    assert (found.field, found.value) == ("spec.worker", "")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("maximum cpu usage per Container is 2, but limit is 4", "spec.worker.resources (cpu)"),
        ("[minimum memory usage per Pod is 1Gi, but request is 1, cpu max limit to request ratio "
         "per Container is 2, but provided ratio is 4.000000]",
         "spec.worker.resources (memory), spec.worker.resources (cpu)"),
        ("failed quota: q: must specify limits.memory for: mizzen",
         "spec.worker.resources.limits.memory"),
        ("admission webhook denied the request: no", "spec.worker"),
    ],
)  # fmt: skip
def test_the_words_of_a_policy_lead_to_the_field(said: str, field: str) -> None:
    assert problem("worker", said=f"pods is forbidden: {said}").field == field


def test_the_sentence_has_field_value_words_and_remedy() -> None:
    found = problem("worker", "spec.containers[0].resources.limits[cpu]", said="4 is too much.")
    assert found.sentence() == (
        "spec.worker.resources.limits.cpu: the API server refuses the worker pods: 4 is too much "
        "(found 4); change it, or the policy of the namespace; the API server is asked again at "
        "intervals and after each edit"
    )
    assert found.reason == "InvalidPodTemplate"


TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a b"}},
    "spec": {
        "nodeSelector": {"a b": "c"},
        "containers": [
            {"name": "mizzen", "env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"name": "side", "imag": "x"},
        ],
        "initContainers": [{"name": "first", "image": "i"}],
    },
}
WRITTEN = resolved(
    topology="Split",
    engine={"images": {"worker": "w@x"}},
    worker={"podTemplate": TEMPLATE},
    tokenizer={"podTemplate": TEMPLATE},
)
SIDE = "spec.containers[1]"
DECODING = 'StatefulSet in version "v1" cannot be handled as a StatefulSet: '
NAMED = 'violates PodSecurity "restricted:latest": runAsNonRoot != true (container "side" must set '


@pytest.mark.parametrize(
    ("said", "paths", "field"),
    [
        ("no", [f"spec.template.{SIDE}.image"], f"$.{SIDE}.image"),
        ("no", [f"{SIDE}.imag"], f"$.{SIDE}.imag"),
        ("no", ["spec.nodeSelector[a b]"], "$.spec.nodeSelector.a b"),
        ("no", ["spec.template.labels"], "spec.worker"),
        ("no", ["metadata.labels"], "$.metadata.labels"),
        ("no", ["spec.containers[0].image"], "spec.engine.images.worker"),
        (f'{DECODING}strict decoding error: unknown field "spec.template.{SIDE}.imag"', [],
         f"$.{SIDE}.imag"),
        ('failed to create typed patch object (a/b; apps/v1, Kind=Deployment): '
         '.spec.template.spec.containers[name="side"].imag: field not declared in schema', [],
         f"$.{SIDE}.imag"),
        (f"{DECODING}json: cannot unmarshal number into Go struct field "
         "PodSpec.spec.template.spec.nodeSelector of type string", [], "$.spec.nodeSelector"),
        (f"{DECODING}quantities must match the regular expression", [], "$"),
        (f"pods is forbidden: {NAMED}", [], f"$.{SIDE}"),
        ("failed quota: q: must specify limits.memory for: mizzen", [],
         "spec.worker.resources.limits.memory"),
        ("failed quota: q: must specify limits.memory for: first,side", [],
         f"$.{SIDE}, $.spec.initContainers[0]"),
        ("maximum cpu usage per Container is 1, but limit is 2", [],
         f"spec.worker.resources (cpu), $.{SIDE}, $.spec.initContainers[0]"),
        ("admission webhook denied the request: no", [], "spec.worker"),
    ],
)  # fmt: skip
def test_what_a_user_wrote_is_told_as_they_wrote_it(
    said: str, paths: list[str], field: str
) -> None:
    found = problem("worker", *paths, said=said, service=WRITTEN)
    assert found.field == field.replace("$", "spec.worker.podTemplate")


def test_tokenizers_have_a_template_of_their_own() -> None:
    found = problem("tokenizer", f"{SIDE}.imag", service=WRITTEN)
    assert found.field == "spec.tokenizer.podTemplate.spec.containers[1].imag"
    assert found.value == "x"
    of_weights = template_problem(WRITTEN, "weights", {}, said="no.", paths=[])
    assert of_weights.field == "spec.model.cache"
