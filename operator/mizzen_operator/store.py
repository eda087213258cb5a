"""Owns the operator's view of the cluster: the newest known object per UID, and how fresh it is.

Does not talk to the cluster: events, own replies and LIST results are handed in.

Invariants: an older resourceVersion never replaces a newer one, and never revives an object that
was gone after it; what an own write returned is visible at once (so a reconcile reads its own
writes), and stays an open expectation until the watch or a LIST has shown it.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NewType

from mizzen_operator.observed import Lack
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.render.labels import SERVICE_UID
from mizzen_operator.spec.model import API_VERSION, KIND, PLURAL
from mizzen_operator.spec.scaler_crd import SCALER_KIND

Manifest = Mapping[str, Any]
ServiceUid = NewType("ServiceUid", str)
ObjectUid = NewType("ObjectUid", str)

MAX_TOMBSTONES = 20_000
_MANAGED_FIELDS = "managedFields"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """One kind of the API server and its place in URLs."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, *, namespace: str | None, name: str | None = None) -> str:
        """URL path of the collection, or of one object."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


SERVICE_KIND = ResourceKind(api_version=API_VERSION, kind=KIND, plural=PLURAL)
POD = ResourceKind(api_version="v1", kind="Pod", plural="pods")
SECRET = ResourceKind(api_version="v1", kind="Secret", plural="secrets")

_KIND_BY_CHILD = {
    child: ResourceKind(api_version=child.api_version, kind=child.kind, plural=child.plural)
    for child in CHILD_KINDS
}
OWNED_KINDS = tuple(_KIND_BY_CHILD.values())
"""Kinds that we create, read back and delete. The Secret is created too, but never read."""
OPTIONAL_KINDS = tuple(kind for child, kind in _KIND_BY_CHILD.items() if child.is_optional)
"""Those of them that the cluster may not have for us: listed, not watched."""
WATCHED_KINDS = (SERVICE_KIND, *(kind for kind in OWNED_KINDS if kind not in OPTIONAL_KINDS), POD)
LISTED_KINDS = (*WATCHED_KINDS, *OPTIONAL_KINDS)
_KIND_BY_NAME = {(kind.api_version, kind.kind): kind for kind in LISTED_KINDS}
_OTHERS_HISTORY = "controller.kubernetes.io/hash"
CHILD_SELECTOR = f"{SERVICE_UID},!{_OTHERS_HISTORY}"
"""Label selector of everything listed except the services: our label exists.

The history that Kubernetes keeps of each StatefulSet bears its pods' labels, ours among them, and
one of its own: left out, for it is as large as all else together."""


CONTROLLER_REVISION = _KIND_BY_NAME["apps/v1", "ControllerRevision"]
"""Where the revisions of a service are stored."""
CLAIM = _KIND_BY_NAME["v1", "PersistentVolumeClaim"]
"""Ours hold fetched weights. Users' bear no label of ours: read one at a time, not watched."""
ROLE_SCALER = _KIND_BY_NAME[API_VERSION, SCALER_KIND]
"""What the roles of a service are scaled by."""


def kind_named(api_version: str, kind: str) -> ResourceKind:
    """The kind of a rendered object; KeyError for one that is not in the lists above."""
    return _KIND_BY_NAME[api_version, kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Where an object is found: its kind, namespace and name."""

    kind: ResourceKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"


def ref_of(rendered: Manifest) -> ObjectRef:
    """Where a rendered object belongs."""
    metadata = rendered["metadata"]
    return ObjectRef(
        kind=kind_named(rendered["apiVersion"], rendered["kind"]),
        namespace=metadata["namespace"],
        name=metadata["name"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object as last seen."""

    kind: ResourceKind
    uid: ObjectUid
    namespace: str
    name: str
    resource_version: int
    service_uid: ServiceUid | None
    manifest: Manifest
    """Without `managedFields`."""
    packed_managed_fields: bytes = b""
    """As JSON: unpacked they are most of an object's size, and asked for only before an apply."""

    @property
    def managed_fields(self) -> list[dict[str, Any]]:
        """Which fields were written by whom; unpacked at each call."""
        entries: list[dict[str, Any]] = json.loads(self.packed_managed_fields or b"[]")
        return entries

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(kind=self.kind, namespace=self.namespace, name=self.name)

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self.manifest["metadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """What a metadata LIST says of one object."""

    ref: ObjectRef
    uid: ObjectUid
    resource_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDiff:
    """How the store differs from a LIST: what to forget and what to read again."""

    gone: tuple[StoredObject, ...]
    outdated: tuple[ObjectVersion, ...]


def stored_object(kind: ResourceKind, manifest: Manifest) -> StoredObject:
    """Type the metadata of a manifest that came from the API server."""
    metadata = manifest["metadata"]
    uid = ObjectUid(metadata["uid"])
    if kind == SERVICE_KIND:
        service_uid: ServiceUid | None = ServiceUid(uid)
    else:
        label = (metadata.get("labels") or {}).get(SERVICE_UID)
        service_uid = None if label is None else ServiceUid(label)
    return StoredObject(
        kind=kind,
        uid=uid,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        service_uid=service_uid,
        manifest={
            **manifest,
            "metadata": {key: metadata[key] for key in metadata if key != _MANAGED_FIELDS},
        },
        packed_managed_fields=json.dumps(metadata.get(_MANAGED_FIELDS) or []).encode(),
    )


def kept(seen: StoredObject) -> StoredObject:
    """What is worth its memory, in a fleet of thousands, of an object; pure.

    Nobody compares a pod with what was rendered: of its spec only single values stay, such as its
    node. Equal texts of different objects become one.
    """
    manifest, packed = seen.manifest, seen.packed_managed_fields
    if seen.kind == POD:
        spec = manifest.get("spec") or {}
        values = {key: spec[key] for key in spec if not isinstance(spec[key], dict | list)}
        manifest, packed = {**manifest, "spec": values}, b""
    return replace(seen, manifest=_with_shared_texts(manifest), packed_managed_fields=packed)


def _with_shared_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {sys.intern(key): _with_shared_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_shared_texts(item) for item in value]
    return sys.intern(value) if type(value) is str else value


class Store:
    """The newest known object per UID of every listed kind; used from one event loop only.

    Probes ask from other threads, of counts, freshness and expectations alone.
    """

    def __init__(self) -> None:
        self._object_by_uid: dict[ObjectUid, StoredObject] = {}
        self._uids_by_service: dict[ServiceUid, set[ObjectUid]] = {}
        self._uids_by_kind: dict[ResourceKind, set[ObjectUid]] = {}
        self._tombstones: OrderedDict[ObjectUid, int] = OrderedDict()
        self._listed_at_s: dict[ResourceKind, float] = {}
        self._expectations: dict[ObjectUid, tuple[int, float]] = {}
        self._lacking: dict[ResourceKind, Lack] = {}

    # -- writing ------------------------------------------------------------------------------

    def observe(self, seen: StoredObject) -> bool:
        """Take in what the watch, a LIST or a GET has shown; False if it was known or is older."""
        self._settle_expectation(seen.uid, seen.resource_version)
        return self._put(seen)

    def forget(self, uid: ObjectUid, *, at_version: int) -> StoredObject | None:
        """The object was gone, or out of scope, at this version; older sightings are stale."""
        known = self._object_by_uid.get(uid)
        if known is not None and known.resource_version > at_version:
            return None
        self._expectations.pop(uid, None)
        self._tombstones[uid] = max(at_version, self._tombstones.get(uid, 0))
        self._tombstones.move_to_end(uid)
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        if known is not None:
            del self._object_by_uid[uid]
            self._uids_by_kind[known.kind].discard(uid)
            self._unindex_service(known)
        return known

    def wrote(self, written: StoredObject, *, now_s: float) -> None:
        """An own write returned this: visible at once, expected from the watch if there is one."""
        known = self._object_by_uid.get(written.uid)
        if known is not None and known.resource_version >= written.resource_version:
            return
        if self._put(written) and written.kind not in OPTIONAL_KINDS:
            self._expectations[written.uid] = (written.resource_version, now_s)

    def listed(self, kind: ResourceKind, *, now_s: float) -> None:
        """A LIST of `kind` succeeded and the store was repaired by it."""
        self._listed_at_s[kind] = now_s

    def lacks(self, kind: ResourceKind, why: Lack | None) -> bool:
        """The cluster has an optional kind for us (None) or not; True if that is news.

        Known objects are kept: an API server that starts may not know a kind for a moment.
        """
        before = self._lacking.pop(kind, None)
        if why is not None:
            self._lacking[kind] = why
        return before is not why

    # -- reading ------------------------------------------------------------------------------

    def lacking(self) -> dict[str, Lack]:
        """Optional kinds, by name, that the cluster does not have for us, and why."""
        return {kind.kind: why for kind, why in self._lacking.items()}

    def service(self, uid: ServiceUid) -> StoredObject | None:
        """The InferenceService of a key."""
        return self._object_by_uid.get(ObjectUid(uid))

    def service_uids(self) -> tuple[ServiceUid, ...]:
        """Every known InferenceService."""
        return tuple(ServiceUid(uid) for uid in self._uids_by_kind.get(SERVICE_KIND, ()))

    def children(self, uid: ServiceUid) -> tuple[StoredObject, ...]:
        """Everything labelled with the service's UID, sorted by kind, namespace and name."""
        found = (self._object_by_uid[child] for child in self._uids_by_service.get(uid, ()))
        return tuple(
            sorted(
                (child for child in found if child.kind != SERVICE_KIND),
                key=lambda child: (child.kind.kind, child.namespace, child.name),
            )
        )

    def num_objects(self, kind: ResourceKind) -> int:
        return len(self._uids_by_kind.get(kind, ()))

    def diff(
        self, kind: ResourceKind, listed: Iterable[ObjectVersion], *, list_version: int
    ) -> ListDiff:
        """Compare with a LIST taken at `list_version`; objects newer than it are not gone."""
        version_by_uid = {item.uid: item for item in listed}
        gone = (
            self._object_by_uid[uid]
            for uid in self._uids_by_kind.get(kind, ())
            if uid not in version_by_uid
        )
        outdated = (item for item in version_by_uid.values() if not self._is_current(item))
        return ListDiff(
            gone=tuple(known for known in gone if known.resource_version <= list_version),
            outdated=tuple(outdated),
        )

    def is_synced(self, kinds: Iterable[ResourceKind]) -> bool:
        """Every kind was listed at least once: absence in the store means absence."""
        return all(kind in self._listed_at_s for kind in kinds)

    def stale_kinds(
        self, kinds: Iterable[ResourceKind], *, now_s: float, max_age_s: float
    ) -> tuple[ResourceKind, ...]:
        """Kinds whose last successful LIST is older than `max_age_s` (or that never had one)."""
        return tuple(
            kind for kind in kinds if now_s - self._listed_at_s.get(kind, float("-inf")) > max_age_s
        )

    def oldest_expectation_s(self, *, now_s: float) -> float:
        """Age of the oldest own write that neither watch nor LIST has shown yet; 0 if none."""
        # A copy, made at once: probes ask while the event loop writes.
        expectations = list(self._expectations.values())
        return max((now_s - since_s for _, since_s in expectations), default=0.0)

    # -- inside -------------------------------------------------------------------------------

    def _put(self, seen: StoredObject) -> bool:
        if seen.resource_version <= self._tombstones.get(seen.uid, 0):
            return False
        known = self._object_by_uid.get(seen.uid)
        if known is not None and known.resource_version >= seen.resource_version:
            return False
        if known is not None and known.service_uid != seen.service_uid:
            self._unindex_service(known)
        self._object_by_uid[seen.uid] = kept(seen)
        self._uids_by_kind.setdefault(seen.kind, set()).add(seen.uid)
        if seen.service_uid is not None:
            self._uids_by_service.setdefault(seen.service_uid, set()).add(seen.uid)
        return True

    def _unindex_service(self, known: StoredObject) -> None:
        if known.service_uid is None:
            return
        siblings = self._uids_by_service[known.service_uid]
        siblings.discard(known.uid)
        if not siblings:
            del self._uids_by_service[known.service_uid]

    def _is_current(self, item: ObjectVersion) -> bool:
        if item.resource_version <= self._tombstones.get(item.uid, 0):
            return True
        known = self._object_by_uid.get(item.uid)
        if known is None or known.resource_version < item.resource_version:
            return False
        self._settle_expectation(item.uid, item.resource_version)
        return True

    def _settle_expectation(self, uid: ObjectUid, resource_version: int) -> None:
        expected = self._expectations.get(uid)
        if expected is not None and resource_version >= expected[0]:
            del self._expectations[uid]
