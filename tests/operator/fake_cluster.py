"""An API server in memory: resourceVersions, ownership, preconditions, dry runs, owners, faults.

It implements `ClusterClient`. Lists are atomic to it, which is enough for what we render.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mizzen_operator.cluster.client import (
    FieldManager,
    Precondition,
    Subresource,
    VersionList,
    manager_of,
)
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.request import OUTLASTS_PODS
from mizzen_operator.errors import ConflictError, ForbiddenError, RejectedError
from mizzen_operator.store import (
    CONTROLLER_REVISION,
    OWNED_KINDS,
    POD,
    SECRET,
    Manifest,
    ObjectRef,
    ObjectUid,
    ObjectVersion,
    ResourceKind,
)

Path = tuple[str, ...]
POSTED = "Update"
APPLIED = "Apply"
FOREGROUND = "foregroundDeletion"
DRY_RUN = "dry-run"
KIND_BY_NAME = {kind.kind: kind for kind in OWNED_KINDS}
DEPLOYMENT = KIND_BY_NAME["Deployment"]
ACCOUNT = KIND_BY_NAME["ServiceAccount"]
STATEFULSET = KIND_BY_NAME["StatefulSet"]


def is_selected(manifest: Manifest, label_selector: str | None) -> bool:
    """Whether labels exist, or do not: all that our selectors ask for."""
    labels = manifest["metadata"].get("labels") or {}
    terms = label_selector.split(",") if label_selector else []
    return all((term.removeprefix("!") in labels) is not term.startswith("!") for term in terms)


def as_sent(value: Any) -> Any:
    """A copy of JSON, as the other side gets it; much faster than ``copy.deepcopy``."""
    return json.loads(json.dumps(value))


class OperatorDied(BaseException):
    """The operator's process ends here; nothing in it may catch this."""


@dataclass(frozen=True)
class Call:
    """One call that the fake received."""

    verb: str
    ref: ObjectRef
    manager: str = ""
    subresource: str = ""
    grace_s: int | None = None

    @property
    def is_dry_run(self) -> bool:
        return self.verb == DRY_RUN

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", DRY_RUN)


@dataclass
class Entry:
    """One stored object and which manager wrote which of its fields, by POST or by apply."""

    manifest: dict[str, Any]
    owned: dict[tuple[str, str], set[Path]] = field(default_factory=dict)

    def managed_fields(self) -> list[dict[str, Any]]:
        """As the API server shows it."""
        return [
            {
                "manager": manager,
                "operation": operation,
                "fieldsV1": _tree(paths),
                **({"subresource": "status"} if manager == FieldManager.STATUS else {}),
            }
            for (manager, operation), paths in self.owned.items()
        ]


class FakeCluster:
    """See the module docstring."""

    def __init__(self) -> None:
        self._entries: dict[ObjectRef, Entry] = {}
        self._version = itertools.count(1)
        self._uid = itertools.count(1)
        self._watchers: list[Callable[[str, ResourceKind, Manifest], None]] = []
        self.calls: list[Call] = []
        self.lost_nodes: set[str] = set()
        """Nodes that confirm no pod's end."""
        self.now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
        self.before: Callable[[Call], None] = lambda call: None
        self.after_write: Callable[[Call], None] = lambda call: None
        self.mutate: Callable[[ObjectRef, dict[str, Any]], None] = lambda ref, manifest: None
        self.admit: Callable[[ObjectRef, dict[str, Any]], None] = lambda ref, manifest: None
        """Validation and admission of everything written, dry or not; raises to refuse."""

    # -- for tests ----------------------------------------------------------------------------

    def watch(self, watcher: Callable[[str, ResourceKind, Manifest], None]) -> Callable[[], None]:
        """Call `watcher(type, kind, manifest)` at each change, until the result is called."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.is_write]

    @property
    def dry_runs(self) -> list[Call]:
        return [call for call in self.calls if call.is_dry_run]

    def objects(self, kind: ResourceKind | None = None) -> list[dict[str, Any]]:
        return [
            as_sent(entry.manifest)
            for ref, entry in sorted(self._entries.items(), key=lambda item: str(item[0]))
            if kind is None or ref.kind == kind
        ]

    def versions(self) -> dict[ObjectRef, str]:
        """What tells that any object changed, came or went."""
        return {
            ref: entry.manifest["metadata"]["resourceVersion"]
            for ref, entry in self._entries.items()
        }

    def refs(self, kind: ResourceKind | None = None) -> list[ObjectRef]:
        return sorted((ref for ref in self._entries if kind in (None, ref.kind)), key=str)

    def find(self, ref: ObjectRef) -> dict[str, Any] | None:
        entry = self._entries.get(ref)
        return None if entry is None else as_sent(entry.manifest)

    def put(self, kind: ResourceKind, manifest: Manifest) -> dict[str, Any]:
        """Create or replace as a person would; status is kept unless given."""
        metadata = manifest["metadata"]
        ref = ObjectRef(kind=kind, namespace=metadata["namespace"], name=metadata["name"])
        entry = self._entries.get(ref)
        if entry is None:
            return self._add(ref, manifest, owner="")
        new = as_sent(manifest)
        for name in ("uid", "creationTimestamp", "generation", "resourceVersion"):
            new["metadata"][name] = entry.manifest["metadata"][name]
        if "status" not in new and "status" in entry.manifest:
            new["status"] = entry.manifest["status"]
        return self._store(ref, entry, new)

    def edit(
        self, ref: ObjectRef, change: Callable[[dict[str, Any]], None], *, by: str = ""
    ) -> None:
        """Change an object; `by` a field manager it is remembered who did."""
        entry = self._entries[ref]
        new = as_sent(entry.manifest)
        change(new)
        if by:
            before = dict(_leaves(entry.manifest))
            changed = {path for path, value in _leaves(new) if before.get(path) != value}
            for paths in entry.owned.values():
                paths.difference_update(changed)
            entry.owned.setdefault((by, POSTED), set()).update(changed)
        self._store(ref, entry, new)

    def end_pod(self, ref: ObjectRef, grace_s: int | None = None) -> dict[str, Any]:
        """Begin a pod's end, which its node does not confirm; an earlier end wins."""
        entry = self._entries[ref]
        new = as_sent(entry.manifest)
        if grace_s is None:
            grace_s = new["spec"]["terminationGracePeriodSeconds"]
        ends_at = (self.now() + timedelta(seconds=grace_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        if ends_at < new["metadata"].get("deletionTimestamp", "9"):
            new["metadata"] |= {"deletionTimestamp": ends_at, "deletionGracePeriodSeconds": grace_s}
        return self._store(ref, entry, new)

    def remove(self, ref: ObjectRef) -> None:
        """Delete as a person would; owned objects follow."""
        manifest = self._entries.pop(ref).manifest
        manifest["metadata"]["resourceVersion"] = str(next(self._version))
        self._tell("DELETED", ref.kind, manifest)
        self._collect(manifest["metadata"]["uid"])

    # -- ClusterClient ------------------------------------------------------------------------

    async def list_versions(
        self, kind: ResourceKind, *, namespace: str | None, label_selector: str | None
    ) -> VersionList:
        assert kind != SECRET, "the operator may not list Secrets"
        self._begin(Call("list", ObjectRef(kind=kind, namespace=namespace or "", name="")))
        return VersionList(
            items=tuple(
                ObjectVersion(
                    ref=ref,
                    uid=ObjectUid(entry.manifest["metadata"]["uid"]),
                    resource_version=int(entry.manifest["metadata"]["resourceVersion"]),
                )
                for ref, entry in self._entries.items()
                if ref.kind == kind
                and namespace in (None, ref.namespace)
                and is_selected(entry.manifest, label_selector)
            ),
            list_version=next(self._version),
        )

    async def get(self, ref: ObjectRef) -> Manifest:
        assert ref.kind != SECRET, "the operator may not read Secrets"
        self._begin(Call("get", ref))
        return as_sent(self._entry(ref).manifest)

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        assert ref.kind != SECRET, "a Secret's answer must hold metadata only"
        return self._create(ref, manifest)

    async def try_create(self, ref: ObjectRef, manifest: Manifest) -> None:
        self._begin(Call(DRY_RUN, ref))
        self._require_account(ref, manifest)
        new = as_sent(manifest)
        self.mutate(ref, new)
        self.admit(ref, new)
        if ref in self._entries:
            raise ConflictError(f"{ref} already exists")

    async def try_apply(
        self, ref: ObjectRef, manifest: Manifest, precondition: Precondition
    ) -> None:
        manager = FieldManager.CONTROLLER
        self._begin(Call(DRY_RUN, ref, manager=manager.value))
        entry = self._entries.get(ref)
        if entry is None:
            raise ConflictError(f"{ref}: uid {precondition.uid} does not exist")
        self._check(ref, entry, precondition)
        new, _ = _merged(entry, manifest, manager, Subresource.MAIN)
        self.mutate(ref, new)
        self.admit(ref, new)

    async def create_unread(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        return {"metadata": self._create(ref, manifest)["metadata"]}

    async def touch_unread(self, ref: ObjectRef, *, uid: ObjectUid | None) -> Manifest:
        self._begin(call := Call("patch", ref))
        metadata = self._entry(ref).manifest["metadata"]
        if uid not in (None, metadata["uid"]):
            raise ConflictError(f"{ref}: the UID is {metadata['uid']}")
        self.after_write(call)
        return {"metadata": as_sent(metadata)}

    async def apply(
        self,
        ref: ObjectRef,
        manifest: Manifest,
        *,
        manager: FieldManager,
        precondition: Precondition,
        subresource: Subresource = Subresource.MAIN,
    ) -> Manifest:
        call = Call("patch", ref, manager=manager.value, subresource=subresource.value)
        self._begin(call)
        entry = self._entries.get(ref)
        if entry is None:
            raise ConflictError(f"{ref}: uid {precondition.uid} does not exist")
        self._check(ref, entry, precondition)
        new, paths = _merged(entry, manifest, manager, subresource)
        if subresource is Subresource.MAIN:
            self.admit(ref, as_sent(new))
        entry.owned[manager.value, APPLIED] = paths
        stored = self._store(ref, entry, new)
        self.after_write(call)
        return stored

    async def replace_in_status(
        self, ref: ObjectRef, fields: Manifest, precondition: Precondition
    ) -> Manifest:
        self._begin(call := Call("patch", ref, subresource=Subresource.STATUS.value))
        entry = self._entry(ref)
        self._check(ref, entry, precondition)
        new = as_sent(entry.manifest)
        status = {**new.get("status", {}), **as_sent(fields)}
        new["status"] = {key: value for key, value in status.items() if value is not None}
        stored = self._store(ref, entry, new)
        self.after_write(call)
        return stored

    async def own(
        self, ref: ObjectRef, managed_fields: Sequence[Manifest], precondition: Precondition
    ) -> Manifest:
        self._begin(call := Call("patch", ref))
        entry = self._entry(ref)
        self._check(ref, entry, precondition)
        entry.owned = {
            (item["manager"], item["operation"]): {
                tuple(key.removeprefix("f:") for key in path)
                for path, _ in _leaves(item["fieldsV1"])
            }
            for item in managed_fields
        }
        stored = self._store(ref, entry, as_sent(entry.manifest))
        self.after_write(call)
        return stored

    async def delete(
        self, ref: ObjectRef, precondition: Precondition, *, grace_s: int | None = None
    ) -> Manifest | None:
        self._begin(call := Call("delete", ref, grace_s=grace_s))
        entry = self._entry(ref)
        self._check(ref, entry, precondition)
        if grace_s != 0 and self._is_on_lost_node(entry.manifest):
            stored = self.end_pod(ref, grace_s)
            self.after_write(call)
            return stored
        finalizers = [*entry.manifest["metadata"].get("finalizers", ())]
        if ref.kind.kind in OUTLASTS_PODS:
            finalizers.append(FOREGROUND)
        if finalizers:
            new = as_sent(entry.manifest)
            new["metadata"] |= {
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": finalizers,
            }
            stored = self._store(ref, entry, new)
            self.after_write(call)
            return stored
        self.remove(ref)
        self.after_write(call)
        return None

    # -- inside -------------------------------------------------------------------------------

    def _is_on_lost_node(self, manifest: Manifest) -> bool:
        return manifest["kind"] == POD.kind and manifest["spec"].get("nodeName") in self.lost_nodes

    def _require_account(self, ref: ObjectRef, manifest: Manifest) -> None:
        """As the admission of pods does."""
        if ref.kind != POD:
            return
        name = manifest["spec"]["serviceAccountName"]
        if ObjectRef(kind=ACCOUNT, namespace=ref.namespace, name=name) not in self._entries:
            raise ForbiddenError(f'{ref} is forbidden: serviceaccount "{name}" not found')

    def _begin(self, call: Call) -> None:
        self.calls.append(call)
        self.before(call)

    def _entry(self, ref: ObjectRef) -> Entry:
        entry = self._entries.get(ref)
        if entry is None:
            raise NotFoundError(f"{ref} not found")
        return entry

    def _check(self, ref: ObjectRef, entry: Entry, precondition: Precondition) -> None:
        metadata = entry.manifest["metadata"]
        version = precondition.resource_version
        if precondition.uid != metadata["uid"]:
            raise ConflictError(f"{ref}: the UID is {metadata['uid']}")
        if version is not None and version != int(metadata["resourceVersion"]):
            raise ConflictError(f"{ref}: the version is {metadata['resourceVersion']}")

    def _create(self, ref: ObjectRef, manifest: Manifest) -> dict[str, Any]:
        self._begin(call := Call("create", ref))
        self.admit(ref, as_sent(manifest))
        if ref in self._entries:
            raise ConflictError(f"{ref} already exists")
        stored = self._add(ref, manifest, owner=manager_of(ref.kind).value)
        self.after_write(call)
        return stored

    def _add(self, ref: ObjectRef, manifest: Manifest, *, owner: str) -> dict[str, Any]:
        new = as_sent(manifest)
        new["metadata"] |= {
            "uid": f"uid-{next(self._uid)}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
        }
        self.mutate(ref, new)
        new["metadata"]["resourceVersion"] = str(next(self._version))
        entry = Entry(manifest=new)
        if owner:
            entry.owned[owner, POSTED] = {
                path
                for path, _ in _leaves(new)
                if path[0] != "metadata" or path[1] in ("labels", "ownerReferences")
            }
            new["metadata"]["managedFields"] = entry.managed_fields()
        self._entries[ref] = entry
        self._tell("ADDED", ref.kind, new)
        return as_sent(new)

    def _store(self, ref: ObjectRef, entry: Entry, new: dict[str, Any]) -> dict[str, Any]:
        self.mutate(ref, new)
        if ref.kind == CONTROLLER_REVISION and new["data"] != entry.manifest["data"]:
            raise RejectedError(f"{ref}: data: Invalid value: field is immutable")
        new["metadata"]["managedFields"] = entry.managed_fields()
        if new != entry.manifest:
            if new.get("spec") != entry.manifest.get("spec"):
                new["metadata"]["generation"] = entry.manifest["metadata"]["generation"] + 1
            new["metadata"]["resourceVersion"] = str(next(self._version))
            entry.manifest = new
            self._tell("MODIFIED", ref.kind, new)
        return as_sent(entry.manifest)

    def _tell(self, event: str, kind: ResourceKind, manifest: Manifest) -> None:
        for watcher in list(self._watchers):
            watcher(event, kind, as_sent(manifest))

    def _collect(self, owner_uid: str) -> None:
        owned = [
            ref
            for ref, entry in self._entries.items()
            if any(
                owner["uid"] == owner_uid
                for owner in entry.manifest["metadata"].get("ownerReferences") or ()
            )
        ]
        for ref in owned:
            if ref in self._entries:
                self.remove(ref)


def _merged(
    entry: Entry, manifest: Manifest, manager: FieldManager, subresource: Subresource
) -> tuple[dict[str, Any], set[Path]]:
    """What a server-side apply makes of an object, and which fields the manager owns then."""
    new = as_sent(entry.manifest)
    wanted = {key: value for key, value in manifest.items() if key != "metadata"}
    if subresource is Subresource.STATUS:
        wanted = {"status": wanted.get("status", {})}
    else:
        wanted["metadata"] = {
            key: value
            for key, value in manifest["metadata"].items()
            if key in ("labels", "annotations", "ownerReferences")
        }
    paths = dict(_leaves(wanted))
    key = (manager.value, APPLIED)
    others = [own for other, own in entry.owned.items() if other != key]
    for path in entry.owned.get(key, set()) - set(paths):
        if not any(path in own for own in others):
            _drop(new, path)
    for path, value in paths.items():
        _set(new, path, as_sent(value))
    return new, set(paths)


def _leaves(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _tree(paths: Iterable[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        node = tree
        for key in path:
            node = node.setdefault(f"f:{key}", {})
    return tree


def _set(target: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value


def _drop(target: dict[str, Any], path: Path) -> None:
    for key in path[:-1]:
        target = target.get(key, {})
    target.pop(path[-1], None)
