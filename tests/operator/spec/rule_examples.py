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
CACHE = {"size": "10Gi"}
SOURCES: dict[str, dict[str, Any]] = {
    "huggingFace": {"repository": "org/model"},
    "s3": {"bucket": "models", "prefix": "team/model"},
    "oci": {"image": "registry.example/team/model:1"},
}


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


def _group(**parallelism: int) -> dict[str, Any]:
    return _spec(topology="Split", worker={"parallelism": parallelism})


def _named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def _path(path: str) -> dict[str, Any]:
    return _spec(model={"source": {"pvc": {"path": path}}})


def _fetched(source: str, **fields: Any) -> dict[str, Any]:
    """A source that a Job fetches instead of the claim."""
    given = {"pvc": None, source: {**SOURCES[source], **fields}}
    return _spec(model={"source": given, "cache": CACHE})


def _cached(**fields: Any) -> dict[str, Any]:
    return patched(_fetched("huggingFace"), _spec(model={"cache": fields}))


def _args(*args: str) -> dict[str, Any]:
    return _spec(engine={"args": list(args)})


def _env(*names: str) -> dict[str, Any]:
    return _spec(engine={"env": [{"name": name, "value": "1"} for name in names]})


def _parents(*refs: dict[str, str]) -> dict[str, Any]:
    return _spec(routing={"httpRoute": {"parentRefs": list(refs)}})


def _hostnames(*names: str) -> dict[str, Any]:
    route = {"parentRefs": [{"name": "a"}], "hostnames": list(names)}
    return _spec(routing={"httpRoute": route})


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
    "key-rotation-only-split": Example(
        good=(
            _spec(**SPLIT, security={"keyRotation": "2027-01-01"}),
            _spec(topology="Unified", security={}),
        ),
        bad=(_spec(topology="Unified", security={"keyRotation": "2027-01-01"}),),
    ),
    "model-source-one": Example(
        good=({}, *(_fetched(source) for source in SOURCES)),
        bad=(
            _spec(model={"source": {"pvc": None}}),
            _spec(model={"source": SOURCES}),
        ),
    ),
    "model-path-inside": Example(
        good=(_path(""), _path("a/b"), _path("a..b/c..")),
        bad=(_path("/etc"), _path("../x"), _path("a/../../x"), _path("a/..")),
    ),
    **{
        f"model-path-inside-{source}": Example(
            good=(_fetched(source, path="a/b"), _fetched(source, path="a..b/c..")),
            bad=(_fetched(source, path="/etc"), _fetched(source, path="a/../../x")),
        )
        for source in SOURCES
    },
    "model-image-tagged": Example(
        good=(
            _fetched("oci", image="registry:5000/a/b:v1"),
            _fetched("oci", image=f"registry:5000/a/b@sha256:{'0' * 64}"),
        ),
        bad=(
            _fetched("oci", image="registry.example/a/b"),
            _fetched("oci", image="registry:5000/a/b"),
        ),
    ),
    "model-s3-endpoint-host": Example(
        good=(
            _fetched("s3"),
            _fetched("s3", endpoint="http://s3.example:9000"),
            _fetched("s3", endpoint="https://s3.example/"),
        ),
        bad=(
            _fetched("s3", endpoint="https://s3.example/models"),
            _fetched("s3", endpoint="http://s3:9000/a/"),
        ),
    ),
    "model-cache-fetched-only": Example(good=({},), bad=(_spec(model={"cache": CACHE}),)),
    "model-cache-needed": Example(
        good=(_fetched("s3"),), bad=(patched(_fetched("s3"), _spec(model={"cache": None})),)
    ),
    "model-cache-size": Example(good=(_cached(size="1Gi"),), bad=(_cached(size="0"),)),
    "model-cache-shareable": Example(
        good=(
            _cached(accessMode="ReadWriteMany"),
            patched(_cached(accessMode="ReadWriteOnce"), _spec(replicas=1)),
            patched(_cached(accessMode="ReadWriteOnce"), _spec(replicas=0)),
            patched(_cached(), _spec(replicas=2, **SPLIT)),
        ),
        bad=(
            patched(_cached(accessMode="ReadWriteOnce"), _spec(replicas=2)),
            patched(_cached(accessMode="ReadWriteOnce"), _spec(**SPLIT)),
            patched(
                _cached(accessMode="ReadWriteOnce"),
                _worker(rollout={"maxSurge": 1, "maxUnavailable": 0}),
            ),
        ),
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
        good=(
            _worker(gpu={"countPerNode": 1}),
            _worker(gpu={"countPerNode": 0}),
            _worker(parallelism={"tensor": 2}, gpu={"countPerNode": 2}),
            _worker(parallelism={"data": 2}, gpu={"countPerNode": 2}),
        ),
        bad=(
            _worker(gpu={"countPerNode": 2}),
            _worker(parallelism={"tensor": 4}, gpu={"countPerNode": 2}),
        ),
    ),
    "pipeline-unavailable": Example(
        good=(_worker(parallelism={"pipeline": 1}),), bad=(_worker(parallelism={"pipeline": 2}),)
    ),
    "nodes-topology-unavailable": Example(
        good=(_group(tensor=3, nodes=3), _worker(parallelism={"nodes": 1})),
        bad=(_worker(parallelism={"tensor": 2, "nodes": 2}),),
    ),
    "nodes-data-unavailable": Example(
        good=(_group(tensor=4, nodes=2, data=1), _group(tensor=2, data=2)),
        bad=(_group(tensor=2, nodes=2, data=2),),
    ),
    "nodes-share-ranks": Example(
        good=(_group(tensor=6, nodes=3),),
        bad=(_group(tensor=3, nodes=2), _group(nodes=2)),
    ),
    "gpu-in-resources": Example(
        good=(_worker(resources={"limits": {"cpu": 2, "example.com/fpga": 1}}),),
        bad=(
            _worker(resources={"limits": {"nvidia.com/gpu": 1}}),
            _worker(resources={"requests": {"x/y": 1}}, gpu={"resourceName": "x/y"}),
        ),
    ),
    "gpu-memory-once": Example(
        good=(
            _worker(gpu={"countPerNode": 1, "class": "nvidia-l4"}),
            _worker(gpu={"countPerNode": 1, "memory": "24Gi"}),
        ),
        bad=(_worker(gpu={"countPerNode": 1, "class": "nvidia-l4", "memory": "24Gi"}),),
    ),
    "gpu-memory-unit": Example(
        good=(_worker(gpu={"countPerNode": 1, "memory": "1Gi"}),),
        bad=(
            _worker(gpu={"countPerNode": 1, "memory": "24"}),
            _worker(gpu={"countPerNode": 1, "memory": "0"}),
        ),
    ),
    "gpu-memory-of-gpu": Example(
        good=(_worker(gpu={"countPerNode": 1, "class": "a.b-1"}), _worker(gpu={})),
        bad=(_worker(gpu={"class": "nvidia-l4"}), _worker(gpu={"memory": "24Gi"})),
    ),
    "worker-requests-fit": Example(
        good=(_worker(resources=_cpu("500m", 1)), _worker(resources=_cpu(1, "1000m"))),
        bad=(_worker(resources=_cpu(2, "1999m")),),
    ),
    "tokenizer-requests-fit": Example(
        good=(_spec(topology="Split", tokenizer={"resources": _cpu("0.5", "500m")}),),
        bad=(_spec(topology="Split", tokenizer={"resources": _cpu(1, "500m")}),),
    ),
    "model-cache-requests-fit": Example(
        good=(_cached(resources=_cpu("0.5", "500m")),), bad=(_cached(resources=_cpu(1, "500m")),)
    ),
    "observability-labels-owned": Example(
        good=({}, _spec(observability={"labels": {"release": "prom", "example.com/a": "b"}})),
        bad=(
            _spec(observability={"labels": {"serving.mizzen.dev/service": "other"}}),
            _spec(observability={"labels": {"app.kubernetes.io/managed-by": "me"}}),
            _spec(observability={"labels": {"controller.kubernetes.io/hash": "x"}}),
        ),
    ),
    "routing-hostnames-no-addresses": Example(
        good=(_hostnames("chat.example.com", "*.example.com", "4chan.example", "10.0.0.1.nip.io"),),
        bad=(
            _hostnames("10.0.0.1"),
            _hostnames("chat.example.com", "192.168.1.20"),
        ),
    ),
    "routing-parents-distinct": Example(
        good=(
            _parents({"name": "a"}, {"name": "b"}),
            _parents({"name": "a"}, {"name": "a", "namespace": "n"}),
            _parents({"name": "a", "sectionName": "s"}, {"name": "a", "sectionName": "t"}),
        ),
        bad=(
            _parents({"name": "a"}, {"name": "b"}, {"name": "a"}),
            _parents({"name": "a", "namespace": "n"}, {"name": "a", "namespace": "n"}),
            _parents({"name": "a"}, {"name": "a", "sectionName": "s"}),
            _parents({"name": "a", "sectionName": "s"}, {"name": "a", "sectionName": "s"}),
        ),
    ),
    "unavailable-tokenizer-scaling": Example(
        good=(_spec(**SPLIT),), bad=(_spec(topology="Split", tokenizer={"scaling": {"min": 1}}),)
    ),
    "unavailable-worker-scheduling": Example(
        good=({},), bad=(_worker(scheduling={"gang": "Kueue"}),)
    ),
    "unavailable-prefill": Example(good=({},), bad=(_spec(prefill={"replicas": 1}),)),
    "unavailable-decode": Example(good=({},), bad=(_spec(decode={"replicas": 1}),)),
    "unavailable-disaggregation": Example(good=({},), bad=(_spec(disaggregation={}),)),
    "unavailable-kvCache": Example(good=({},), bad=(_spec(kvCache={"share": "None"}),)),
    "unavailable-scaling": Example(good=({},), bad=(_spec(scaling={"mode": "Auto"}),)),
    "unavailable-runtimeRef": Example(good=({},), bad=(_spec(runtimeRef={"name": "x"}),)),
    "unavailable-observability-traces": Example(
        good=(_spec(observability={}),),
        bad=(_spec(observability={"traces": {"otlpEndpoint": "a"}}),),
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
    "spec.model.source.huggingFace.repository": Example(
        good=(_fetched("huggingFace", repository="a.b/C_d-1"),),
        bad=(
            _fetched("huggingFace", repository="model"),
            _fetched("huggingFace", repository="a/../b"),
            _fetched("huggingFace", repository=None),
        ),
    ),
    "spec.model.source.huggingFace.revision": Example(
        good=(_fetched("huggingFace", revision="refs/pr/1"),),
        bad=(_fetched("huggingFace", revision=""), _fetched("huggingFace", revision="-x")),
    ),
    "spec.model.source.huggingFace.endpoint": Example(
        good=(_fetched("huggingFace", endpoint="http://hub.example:8080/mirror"),),
        bad=(
            _fetched("huggingFace", endpoint="hub.example"),
            _fetched("huggingFace", endpoint="https://user:word@hub.example"),
        ),
    ),
    "spec.model.source.huggingFace.tokenSecretRef.key": Example(
        good=(_fetched("huggingFace", tokenSecretRef={"name": "hub", "key": "token"}),),
        bad=(_fetched("huggingFace", tokenSecretRef={"name": "hub"}),),
    ),
    "spec.model.source.huggingFace.files": Example(
        good=(_fetched("huggingFace", files=["*.gguf", "a/[0-9]?.json"]),),
        bad=(
            _fetched("huggingFace", files=["--to=/x"]),
            _fetched("huggingFace", files=["*"] * 17),
        ),
    ),
    "spec.model.source.s3.prefix": Example(
        good=(_fetched("s3", prefix=""), _fetched("s3", prefix="a/b.c/")),
        bad=(_fetched("s3", prefix="/a"), _fetched("s3", prefix="a/../b")),
    ),
    "spec.model.source.s3.bucket": Example(
        good=(_fetched("s3", bucket="my.bucket-1"),), bad=(_fetched("s3", bucket="My"),)
    ),
    "spec.model.source.oci.image": Example(
        good=(
            _fetched("oci", image="registry:5000/a/b:v1"),
            _fetched("oci", image=f"registry.example/a@sha256:{'0' * 64}"),
        ),
        bad=(_fetched("oci", image="model:1"), _fetched("oci", image="https://r.example/a:1")),
    ),
    "spec.model.cache.size": Example(
        good=(_cached(size=1_000_000),), bad=(_cached(size="lots"), _cached(size=None))
    ),
    "spec.model.cache.accessMode": Example(
        good=(_cached(accessMode="ReadWriteOnce"),), bad=(_cached(accessMode="ReadOnlyMany"),)
    ),
    "spec.model.cache.refresh": Example(
        good=(_cached(refresh="2026-11-30"),), bad=(_cached(refresh="a b"),)
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
    "spec.worker.gpu.class": Example(
        good=(_worker(gpu={"countPerNode": 1, "class": "x" * 63}),),
        bad=(
            _worker(gpu={"countPerNode": 1, "class": "NVIDIA L4"}),
            _worker(gpu={"countPerNode": 1, "class": "x" * 64}),
        ),
    ),
    "spec.worker.gpu.memory": Example(
        good=(_worker(gpu={"countPerNode": 1, "memory": "1.5Gi"}),),
        bad=(_worker(gpu={"countPerNode": 1, "memory": "lots"}),),
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
    "spec.worker.podTemplate": Example(
        good=(_worker(podTemplate={"spec": {"nodeSelector": {"pool": "a"}}}),),
        bad=(_worker(podTemplate="x"), _worker(podTemplate=[])),
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
    "spec.observability.interval": Example(
        good=(
            _spec(observability={"interval": "1s"}),
            _spec(observability={"interval": "60s"}),
        ),
        bad=(
            _spec(observability={"interval": "61s"}),
            _spec(observability={"interval": "1m"}),
            _spec(observability={"interval": 15}),
        ),
    ),
    "spec.observability.podMonitor": Example(
        good=(_spec(observability={"podMonitor": False}),),
        bad=(_spec(observability={"podMonitor": "Auto"}),),
    ),
    "spec.observability.labels": Example(
        good=(_spec(observability={"labels": {"a": ""}}),),
        bad=(
            _spec(observability={"labels": {"a": "not a value"}}),
            _spec(observability={"labels": {f"a{index}": "" for index in range(17)}}),
        ),
    ),
    "spec.observability.prometheusNamespace": Example(
        good=(_spec(observability={"prometheusNamespace": "monitoring"}),),
        bad=(_spec(observability={"prometheusNamespace": "Monitoring"}),),
    ),
    "spec.networkPolicy": Example(
        good=(_spec(networkPolicy="Off"),), bad=(_spec(networkPolicy="None"),)
    ),
}
"""By the path of the field that a refusal must name."""
