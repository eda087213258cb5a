"""Owns reading services with all that belongs to them, and nothing else of the cluster.

Does not own what is made of it (``report``). What a person may not read and can be done without
(Events, claims, ReplicaSets) is left out and said; services and pods must be readable.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.reader import ClusterReader, ObjectList, Selection
from mizzen_operator.errors import ForbiddenError
from mizzen_operator.observed import ClaimFacts, Observed, claim_of
from mizzen_operator.render.labels import SERVICE_UID
from mizzen_operator.report.events import EventFacts, event_of
from mizzen_operator.report.view import ServiceFound, newest_first
from mizzen_operator.snapshot import observed_of
from mizzen_operator.store import (
    CHILD_SELECTOR,
    CLAIM,
    OWNED_KINDS,
    POD,
    SERVICE_KIND,
    Manifest,
    ObjectRef,
    ResourceKind,
    StoredObject,
    stored_object,
)

REPLICA_SET = ResourceKind(api_version="apps/v1", kind="ReplicaSet", plural="replicasets")
WARNINGS_ONLY = "type=Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which services, and whether Events that are no warnings are wanted too."""

    namespace: str | None
    """None: all namespaces."""
    name: str = ""
    """Empty: all services."""
    with_normal_events: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRead:
    """One service: raw objects for files, and the typed snapshot for reports."""

    service: StoredObject
    objects: tuple[StoredObject, ...]
    """Owned objects, ReplicaSets and pods."""
    events: tuple[Manifest, ...]
    found: ServiceFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What was read."""

    services: tuple[ServiceRead, ...]
    gaps: tuple[str, ...]
    """What could not be read, or not wholly; one sentence each."""


async def read_fleet(reader: ClusterReader, wanted: Wanted) -> Fleet:
    """Read it; raises ClusterError where services or pods cannot be read."""
    services = await _services(reader, wanted)
    if not services:
        return Fleet(services=(), gaps=())
    gaps: list[str] = []
    children = await _children(reader, wanted, services, gaps)
    claims = await _claims(reader, services, gaps)
    events = _by_service(services, children, await _events(reader, wanted, gaps))
    read = [
        _one(
            service,
            children.get(service.uid, []),
            claims.get(service.uid),
            events.get(service.uid, []),
        )
        for service in services
    ]
    return Fleet(services=tuple(read), gaps=tuple(dict.fromkeys(gaps)))


async def _services(reader: ClusterReader, wanted: Wanted) -> list[StoredObject]:
    if wanted.name:
        assert wanted.namespace is not None, "a name belongs to a namespace"
        ref = ObjectRef(kind=SERVICE_KIND, namespace=wanted.namespace, name=wanted.name)
        return [stored_object(SERVICE_KIND, await reader.get(ref))]
    listed = await reader.list_objects(SERVICE_KIND, Selection(namespace=wanted.namespace))
    found = [stored_object(SERVICE_KIND, manifest) for manifest in listed.items]
    return sorted(found, key=lambda item: (item.namespace, item.name))


async def _children(
    reader: ClusterReader, wanted: Wanted, services: Sequence[StoredObject], gaps: list[str]
) -> dict[str, list[StoredObject]]:
    one = f",{SERVICE_UID}={services[0].uid}" if wanted.name else ""
    selection = Selection(namespace=wanted.namespace, label_selector=f"{CHILD_SELECTOR}{one}")
    pods = reader.list_objects(POD, selection)
    kinds = (*OWNED_KINDS, REPLICA_SET)
    others = (_optional(reader, kind, selection, gaps) for kind in kinds)
    lists = await asyncio.gather(pods, *others)
    children: dict[str, list[StoredObject]] = {}
    for kind, listed in zip((POD, *kinds), lists, strict=True):
        if listed.is_cut:
            gaps.append(f"there are too many {kind} to read them all: name a namespace with -n")
        for manifest in listed.items:
            child = stored_object(kind, manifest)
            if child.service_uid is not None:
                children.setdefault(child.service_uid, []).append(child)
    return children


async def _optional(
    reader: ClusterReader, kind: ResourceKind, selection: Selection, gaps: list[str]
) -> ObjectList:
    """Objects that can be done without: none where the kind or the right is missing."""
    try:
        return await reader.list_objects(kind, selection)
    except NotFoundError:
        return ObjectList()
    except ForbiddenError:
        gaps.append(f"{kind} may not be read with these credentials: they are left out")
        return ObjectList()


async def _claims(
    reader: ClusterReader, services: Sequence[StoredObject], gaps: list[str]
) -> dict[str, tuple[ClaimFacts, ...]]:
    async def read(service: StoredObject) -> tuple[ClaimFacts, ...] | None:
        name = _claim_name(service.manifest)
        if not name:
            return ()
        ref = ObjectRef(kind=CLAIM, namespace=service.namespace, name=name)
        try:
            return (claim_of(await reader.get(ref)),)
        except NotFoundError:
            return ()
        except ForbiddenError:
            gaps.append(f"{CLAIM} may not be read with these credentials: they are left out")
            return None

    results = await asyncio.gather(*map(read, services))
    pairs = zip(services, results, strict=True)
    return {service.uid: claims for service, claims in pairs if claims is not None}


def _claim_name(manifest: Manifest) -> str:
    """The claim that the spec names, also in a spec that is refused for something else."""
    value: object = manifest.get("spec")
    for step in ("model", "source", "pvc", "claimName"):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


async def _events(reader: ClusterReader, wanted: Wanted, gaps: list[str]) -> list[Manifest]:
    selection = Selection(
        namespace=wanted.namespace,
        field_selector="" if wanted.with_normal_events else WARNINGS_ONLY,
    )
    listed = await _optional(reader, EVENT, selection, gaps)
    if listed.is_cut:
        gaps.append("there are too many Events to read them all: name a namespace with -n")
    return list(listed.items)


def _by_service(
    services: Sequence[StoredObject],
    children: Mapping[str, Sequence[StoredObject]],
    events: Iterable[Manifest],
) -> dict[str, list[Manifest]]:
    """Events by the UID of the service whose own, object's, pod's or claim's they are."""
    uid_to_service = {child.uid: uid for uid, found in children.items() for child in found}
    uid_to_service |= {service.uid: service.uid for service in services}
    claim_to_services: dict[tuple[str, str], list[str]] = {}
    for service in services:
        claim = (service.namespace, _claim_name(service.manifest))
        claim_to_services.setdefault(claim, []).append(service.uid)
    sorted_out: dict[str, list[Manifest]] = {}
    for manifest in events:
        about = manifest.get("involvedObject") or {}
        uids: list[str] = []
        if about.get("uid") in uid_to_service:
            uids = [uid_to_service[about["uid"]]]
        elif about.get("kind") == CLAIM.kind:
            uids = claim_to_services.get((about.get("namespace", ""), about.get("name", "")), [])
        for uid in uids:
            sorted_out.setdefault(uid, []).append(manifest)
    return sorted_out


def _one(
    service: StoredObject,
    objects: Sequence[StoredObject],
    claims: tuple[ClaimFacts, ...] | None,
    events: Sequence[Manifest],
) -> ServiceRead:
    own = [item for item in objects if item.kind != REPLICA_SET]
    # What the operator lacks is in its conditions; these rights are a person's.
    observed = observed_of(service, own, claims=claims, lacking={})
    return ServiceRead(
        service=service,
        objects=tuple(objects),
        events=tuple(events),
        found=_found(service, observed, newest_first(map(event_of, events))),
    )


def _found(
    service: StoredObject, observed: Observed, events: tuple[EventFacts, ...]
) -> ServiceFound:
    spec = service.manifest.get("spec") or {}
    return ServiceFound(
        topology=str(spec.get("topology", "Unified")),
        replicas=0 if spec.get("stopped") else spec.get("replicas", 1),
        observed=observed,
        events=events,
    )
