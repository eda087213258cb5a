"""Owns a service without the operator: one LeaderWorkerSet in place of its worker StatefulSets.

Experimental, and printed by ``mizzen plan`` alone: nothing here is applied, watched or judged. Does
not own pods (``worker_group``) nor the other objects (``render``); it rewrites only what names the
operator or tells pods of a group apart. Invariants: in each pod the worker reads the same place in
its group as in a pod of ours; no selector finds pods of another service.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import keys_name, rank_service_name, worker_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.render.pod_template import with_pod_template, without_pod_templates
from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.render.templates import template_of
from mizzen_operator.spec.model import GROUP
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash
from mizzen_operator.spec.scaler_crd import SCALER_KIND
from mizzen_operator.worker_contract import (
    CURVE_CLIENT_PUBLIC,
    CURVE_CLIENT_SECRET,
    CURVE_SERVER_PUBLIC,
    CURVE_SERVER_SECRET,
    ENV_GROUP_ID,
    ENV_LEADER_ADDRESS,
    ENV_NODE_RANK,
)

API_VERSION = "leaderworkerset.x-k8s.io/v1"
KIND = "LeaderWorkerSet"
SCHEMA_VERSION = "v0.8.0"
"""Release of LeaderWorkerSet whose schema the printed object is checked against in tests."""
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label of each pod: 0 in the leader of every group. ``apps.kubernetes.io/pod-index`` will not do:
leaders are pods of one StatefulSet, and it counts groups there."""
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
"""Label of each pod, in place of our own: one template cannot name a group."""
LEADER_ADDRESS = "LWS_LEADER_ADDRESS"
"""Variable that its webhook puts before all others of a container, so that they may refer to it."""
EXPERIMENTAL = f"{GROUP}/experimental"
"""Annotation of the object: comments do not outlive ``kubectl apply``."""
CAVEAT = (
    f"checked against the published schema of {KIND} {SCHEMA_VERSION} only; "
    "the operator does not manage it"
)

_OWN_KEYS = frozenset({"ownerReferences", labels.APPLIED_HASH, labels.MANAGED_BY})
"""With them the objects would be deleted for want of an owner, or say that somebody keeps them."""
_ITS_KEYS = {labels.POD_INDEX: WORKER_INDEX, labels.GROUP_INDEX: LWS_GROUP}
_KINDS_FOR_THE_OPERATOR = frozenset({"ControllerRevision", SCALER_KIND})


def objects_without_operator(
    resolved: Resolved, *, surge: int, unavailable: int
) -> tuple[dict[str, Any], ...]:
    """Everything that the service needs but its Secret, in the order of applying.

    ``surge`` and ``unavailable`` are groups while it rolls. Whatever the service's UID is, its pods
    get one made of its name: an operator that looks after a service of this name is not to take
    these pods for its own, and two services that were never applied differ too.
    """
    alone = replace(resolved, uid=_stand_in_uid(resolved))
    # A group that exists only while it rolls is held up without a policy for its ranks.
    context = RenderContext(groups=tuple(range(resolved.groups + surge)))
    kept = (_rewritten(obj) for obj in render(alone, context) if not _is_left_out(alone, obj))
    return (*kept, leader_worker_set(alone, surge=surge, unavailable=unavailable))


def leader_worker_set(resolved: Resolved, *, surge: int, unavailable: int) -> dict[str, Any]:
    """The worker groups of the wanted revision; all pods have one template, the leader too.

    Its controller makes a headless Service of the same name, with the names of pods that are not
    ready yet, which is how ranks find their leader; all groups share it.
    """
    frame = _rewritten(
        metadata(
            resolved,
            worker_name(resolved),
            role=labels.ROLE_WORKER,
            extra_labels={
                labels.REVISION: resolved.revision,
                labels.COHORT: resolved.cohort,
                **labels.of_keys(resolved.key_generation),
            },
        )
    )
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**frame, "annotations": {EXPERIMENTAL: CAVEAT}},
        "spec": {
            "replicas": resolved.groups,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": resolved.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": _pod_template(resolved),
            },
        },
    }


def caveats(resolved: Resolved) -> list[str]:
    """What a person has to know before using the objects; the first one says how far to trust."""
    has_followers = resolved.nodes > 1
    epochs = "epochs, so a rank of a group's former life is not turned away; "
    said = [
        f"experimental: {CAVEAT}",
        f"not given by it: {epochs if has_followers else ''}back-off and budget of restarts; "
        "drains and roll-outs by cohort as the operator plans them (it rolls groups by itself, "
        "tokenizers roll beside it); scalers; conditions",
        "apply it where no operator looks after this service",
    ]
    if has_followers:
        said += [
            "print it again to change the number of groups: each has a NetworkPolicy of its own",
            "pods of a group are kept apart by matchLabelKeys, from Kubernetes 1.31 on",
        ]
    if resolved.spec.model.source.fetched is not None:
        said.append(
            f"a Job fetches the weights: apply the pods' controllers, {KIND} and Deployment, when "
            "it is complete"
        )
    if resolved.tokenizer is not None:
        name = keys_name(resolved, resolved.key_generation)
        server, client = (
            f"{secret} and {public}"
            for secret, public in (
                (CURVE_SERVER_SECRET, CURVE_SERVER_PUBLIC),
                (CURVE_CLIENT_SECRET, CURVE_CLIENT_PUBLIC),
            )
        )
        said.append(
            f"make Secret {name} first, of two CURVE key pairs as Z85 text: {server}, {client}"
        )
    return said


def _stand_in_uid(resolved: Resolved) -> str:
    named = {"namespace": resolved.namespace, "name": resolved.name}
    return f"none-{canonical_hash(named)[:24]}"


def _is_left_out(resolved: Resolved, obj: Mapping[str, Any]) -> bool:
    """What only the operator reads, and what the LeaderWorkerSet stands for."""
    meta = obj["metadata"]
    is_of_workers = meta["labels"].get(labels.ROLE) == labels.ROLE_WORKER
    return (
        obj["kind"] in _KINDS_FOR_THE_OPERATOR
        or (obj["kind"] == "StatefulSet" and is_of_workers)
        or (
            obj["kind"] == "Service"
            and meta["name"] == rank_service_name(resolved, resolved.revision)
        )
    )


def _rewritten(value: Any) -> Any:
    """Without keys that speak of the operator, and with labels that its pods have."""
    if isinstance(value, list):
        return [_rewritten(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields: dict[str, Any] = value
    found = {
        _ITS_KEYS.get(key, key): _rewritten(item)
        for key, item in fields.items()
        if key not in _OWN_KEYS
    }
    return found if found.get("annotations", True) else _without(found, "annotations")


def _pod_template(resolved: Resolved) -> dict[str, Any]:
    plain = without_pod_templates(resolved)
    ours = template_of(plain).worker_group(plain, 0)["spec"]["template"]
    meta, spec = ours["metadata"], ours["spec"]
    (container,) = spec["containers"]
    base = {
        "metadata": {
            **meta,
            "labels": _without(meta["labels"], labels.GROUP_INDEX, labels.MANAGED_BY),
        },
        "spec": {
            **_grouped(spec),
            "containers": [{**container, "env": [_variable(item) for item in container["env"]]}],
        },
    }
    return with_pod_template(base, resolved.spec.worker.pod_template)


def _variable(item: dict[str, Any]) -> dict[str, Any]:
    """The variable as it has to be where pods do not know their group beforehand."""
    # The kubelet shall read this reference, so it is not written as a literal.
    leader = f"$({LEADER_ADDRESS})"
    own = (
        pod.field_env(ENV_NODE_RANK, f"metadata.labels['{WORKER_INDEX}']"),
        {"name": ENV_LEADER_ADDRESS, "value": leader},
        {"name": ENV_GROUP_ID, "value": leader},
    )
    return next((one for one in own if one["name"] == item["name"]), item)


def _grouped(value: Any) -> Any:
    """Terms of affinity that name group 0, as terms that mean each pod's own group."""
    if isinstance(value, list):
        return [_grouped(item) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = value.get("labelSelector", {}).get("matchLabels", {})
    if labels.GROUP_INDEX not in chosen:
        return {key: _grouped(item) for key, item in value.items()}
    others = {"matchLabels": _without(chosen, labels.GROUP_INDEX)}
    return {**value, "labelSelector": others, "matchLabelKeys": [LWS_GROUP]}


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: item for key, item in fields.items() if key not in names}
