"""Owns an accepted and a refused object for every rule and every bound of the schema.

Used twice: in Python here, and against a real API server by the cluster tests. An example is a
patch over ``BASE``: maps are merged, ``None`` removes, everything else replaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BASE: dict[str, Any] = {
    "apiVersion": "serving.mizzen.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "demo", "namespace": "default"},
    "spec": {"model": {"source": {"pvc": {"claimName": "weights", "path": "model.gguf"}}}},
}
SPLIT = {"topology": "Split", "tokenizer": {"replicas": 1}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Patches that a rule accepts and refuses."""

    good: tuple[Mapping[str, Any], ...]
    bad: tuple[Mapping[str, Any], ...]


def patched(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Base with the patch applied."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = patched(merged[key], value)
        else:
            merged[key] = value
    return merged


def document(patch: Mapping[str, Any]) -> dict[str, Any]:
    """The whole object of an example."""
    return patched(BASE, patch)


def _spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def _worker(**fields: Any) -> dict[str, Any]:
    return _spec(worker=fields)


def _named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def _path(path: str) -> dict[str, Any]:
    return _spec(model={"source": {"pvc": {"path": path}}})


def _args(*args: str) -> dict[str, Any]:
    return _spec(engine={"args": list(args)})


def _env(*names: str) -> dict[str, Any]:
    return _spec(engine={"env": [{"name": name, "value": "1"} for name in names]})


def _cpu(request: Any, limit: Any) -> dict[str, Any]:
    return {"requests": {"cpu": request}, "limits": {"cpu": limit}}


RULE_EXAMPLES: dict[str, Example] = {
    "name": Example(
        good=(_named("a"), _named("a-1"), _named("a" * 38)),
        bad=(_named("1a"), _named("a.b"), _named("a" * 39)),
    ),
    "topology-disaggregated": Example(
        good=(_spec(topology="Unified"), _spec(topology="Split")),
        bad=(_spec(topology="Disaggregated"),),
    ),
    "tokenizer-only-split": Example(
        good=(_spec(**SPLIT), _spec(topology="Unified")),
        bad=(_spec(tokenizer={"replicas": 1}), _spec(topology="Unified", tokenizer={})),
    ),
    "model-source-one": Example(
        good=({},),
        bad=(
            _spec(model={"source": {"pvc": None}}),
            _spec(model={"source": {"oci": {"reference": "registry.example/m:1"}}}),
        ),
    ),
    "model-path-inside": Example(
        good=(_path(""), _path("a/b"), _path("a..b/c..")),
        bad=(_path("/etc"), _path("../x"), _path("a/../../x"), _path("a/..")),
    ),
    "engine-args-owned": Example(
        good=(_args(), _args("--max-running-requests", "8"), _args("--model-seed=1")),
        bad=(
            _args("--model", "x"),
            _args("--max-running-requests=8", "--listen=tcp://[::]:1"),
            _args("--model=x\ny"),
        ),
    ),
    "engine-env-owned": Example(
        good=(_env("OMP_NUM_THREADS"), _env("X_MIZZEN_Y")), bad=(_env("A", "MIZZEN_ROLE"),)
    ),
    "engine-env-unique": Example(good=(_env("A", "B"),), bad=(_env("A", "B", "A"),)),
    "rollout-stuck": Example(
        good=(
            _worker(rollout={"maxSurge": 1, "maxUnavailable": 0}),
            _worker(rollout={"maxSurge": "0%", "maxUnavailable": "25%"}),
            _worker(rollout={}),
        ),
        bad=(
            _worker(rollout={"maxUnavailable": 0}),
            _worker(rollout={"maxSurge": "0%", "maxUnavailable": 0}),
            _worker(rollout={"maxSurge": 0, "maxUnavailable": "0%"}),
        ),
    ),
    "gpu-world": Example(
        good=(_worker(gpu={"countPerNode": 1}), _worker(gpu={"countPerNode": 0})),
        bad=(_worker(gpu={"countPerNode": 2}),),
    ),
    "parallelism-unavailable": Example(
        good=(_worker(parallelism={"tensor": 1}),),
        bad=(
            _worker(parallelism={"tensor": 2}),
            _worker(parallelism={"pipeline": 2}),
            _worker(parallelism={"data": 2}),
            _worker(parallelism={"nodes": 2}),
        ),
    ),
    "gpu-in-resources": Example(
        good=(_worker(resources={"limits": {"cpu": 2, "example.com/fpga": 1}}),),
        bad=(
            _worker(resources={"limits": {"nvidia.com/gpu": 1}}),
            _worker(resources={"requests": {"x/y": 1}}, gpu={"resourceName": "x/y"}),
        ),
    ),
    "worker-requests-fit": Example(
        good=(_worker(resources=_cpu("500m", 1)), _worker(resources=_cpu(1, "1000m"))),
        bad=(_worker(resources=_cpu(2, "1999m")),),
    ),
    "tokenizer-requests-fit": Example(
        good=(_spec(topology="Split", tokenizer={"resources": _cpu("0.5", "500m")}),),
        bad=(_spec(topology="Split", tokenizer={"resources": _cpu(1, "500m")}),),
    ),
    "unavailable-model-source-huggingFace": Example(
        good=({},), bad=(_spec(model={"source": {"huggingFace": {"repo": "a/b"}}}),)
    ),
    "unavailable-model-source-s3": Example(
        good=({},), bad=(_spec(model={"source": {"s3": {"uri": "s3://a/b"}}}),)
    ),
    "unavailable-model-source-oci": Example(
        good=({},), bad=(_spec(model={"source": {"oci": {"reference": "a/b:1"}}}),)
    ),
    "unavailable-model-cache": Example(good=({},), bad=(_spec(model={"cache": {"type": "PVC"}}),)),
    "unavailable-tokenizer-scaling": Example(
        good=(_spec(**SPLIT),), bad=(_spec(topology="Split", tokenizer={"scaling": {"min": 1}}),)
    ),
    "unavailable-tokenizer-podTemplate": Example(
        good=(_spec(**SPLIT),), bad=(_spec(topology="Split", tokenizer={"podTemplate": {}}),)
    ),
    "unavailable-worker-scheduling": Example(
        good=({},), bad=(_worker(scheduling={"gang": "Kueue"}),)
    ),
    "unavailable-worker-restart": Example(good=({},), bad=(_worker(restart={"budget": 1}),)),
    "unavailable-worker-podTemplate": Example(good=({},), bad=(_worker(podTemplate={"a": 1}),)),
    "unavailable-routing-httpRoute": Example(
        good=({},), bad=(_spec(routing={"httpRoute": {"hostnames": ["a"]}}),)
    ),
    "unavailable-routing-inferencePool": Example(
        good=({},), bad=(_spec(routing={"inferencePool": {"enabled": True}}),)
    ),
    "unavailable-prefill": Example(good=({},), bad=(_spec(prefill={"replicas": 1}),)),
    "unavailable-decode": Example(good=({},), bad=(_spec(decode={"replicas": 1}),)),
    "unavailable-disaggregation": Example(good=({},), bad=(_spec(disaggregation={}),)),
    "unavailable-kvCache": Example(good=({},), bad=(_spec(kvCache={"share": "None"}),)),
    "unavailable-scaling": Example(good=({},), bad=(_spec(scaling={"mode": "Auto"}),)),
    "unavailable-runtimeRef": Example(good=({},), bad=(_spec(runtimeRef={"name": "x"}),)),
    "unavailable-observability": Example(
        good=({},), bad=(_spec(observability={"interval": "15s"}),)
    ),
}

SCHEMA_EXAMPLES: dict[str, Example] = {
    "spec.topology": Example(
        good=(_spec(topology="Split"),), bad=(_spec(topology="split"), _spec(topology=1))
    ),
    "spec.replicas": Example(
        good=(_spec(replicas=0), _spec(replicas=999)),
        bad=(_spec(replicas=-1), _spec(replicas=1000), _spec(replicas="1"), _spec(replicas=1.5)),
    ),
    "spec.paused": Example(good=(_spec(paused=True),), bad=(_spec(paused="true"),)),
    "spec.model": Example(good=({},), bad=(_spec(model=None),)),
    "spec.model.source": Example(good=({},), bad=(_spec(model={"source": None}),)),
    "spec.model.source.pvc.claimName": Example(
        good=({},),
        bad=(
            _spec(model={"source": {"pvc": {"claimName": None}}}),
            _spec(model={"source": {"pvc": {"claimName": "Upper"}}}),
        ),
    ),
    "spec.model.servedName": Example(
        good=(_spec(model={"servedName": "org/Model-1.5:q4"}),),
        bad=(_spec(model={"servedName": "a b"}), _spec(model={"servedName": "x" * 129})),
    ),
    "spec.engine.images.worker": Example(
        good=(_spec(engine={"images": {"worker": "registry:5000/a@sha256:00"}}),),
        bad=(_spec(engine={"images": {"worker": "a b"}}),),
    ),
    "spec.engine.args": Example(
        good=(_args(*["--x"] * 64),), bad=(_args(*["--x"] * 65), _args("x" * 513), _args(""))
    ),
    "spec.engine.dtype": Example(
        good=(_spec(engine={"dtype": "bfloat16"}),), bad=(_spec(engine={"dtype": "int3"}),)
    ),
    "spec.engine.contextLength": Example(
        good=(_spec(engine={"contextLength": 2048}),), bad=(_spec(engine={"contextLength": 0}),)
    ),
    "spec.engine.startupDeadlineSeconds": Example(
        good=(_spec(engine={"startupDeadlineSeconds": 60}),),
        bad=(_spec(engine={"startupDeadlineSeconds": 59}),),
    ),
    "spec.tokenizer.replicas": Example(
        good=(_spec(topology="Split", tokenizer={"replicas": 100}),),
        bad=(_spec(topology="Split", tokenizer={"replicas": 0}),),
    ),
    "spec.worker.resources.limits": Example(
        good=(_worker(resources={"limits": {"cpu": 2, "memory": "1.5Gi"}}),),
        bad=(
            _worker(resources={"limits": {"memory": "lots"}}),
            _worker(resources={"limits": {"cpu": 1.5}}),
            _worker(resources={"limits": {"cpu": -1}}),
            _worker(resources={"limits": {f"x/{index}": 1 for index in range(17)}}),
        ),
    ),
    "spec.worker.rollout.maxSurge": Example(
        good=(_worker(rollout={"maxSurge": "100%"}), _worker(rollout={"maxSurge": 100})),
        bad=(
            _worker(rollout={"maxSurge": "101%"}),
            _worker(rollout={"maxSurge": -1}),
            _worker(rollout={"maxSurge": "1"}),
            _worker(rollout={"maxSurge": 101}),
        ),
    ),
    "spec.worker.drain.timeoutSeconds": Example(
        good=(_worker(drain={"timeoutSeconds": 0}),), bad=(_worker(drain={"timeoutSeconds": 3601}),)
    ),
    "spec.routing.service.port": Example(
        good=(_spec(routing={"service": {"port": 8080}}),),
        bad=(_spec(routing={"service": {"port": 0}}),),
    ),
    "spec.routing.service.type": Example(
        good=(_spec(routing={"service": {"type": "LoadBalancer"}}),),
        bad=(_spec(routing={"service": {"type": "NodePort"}}),),
    ),
    "spec.networkPolicy": Example(
        good=(_spec(networkPolicy="Off"),), bad=(_spec(networkPolicy="None"),)
    ),
}
"""By the path of the field that a refusal must name."""
