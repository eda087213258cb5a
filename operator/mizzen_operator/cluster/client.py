"""Owns the protocol by which the operator reads and writes the cluster.

Does not own a connection: `real.py` has the one over HTTP, the tests have one in memory.

Every call may raise a `ClusterError`. Every write may raise `LeadershipLostError` instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mizzen_operator.store import (
    ROLE_SCALER,
    Manifest,
    ObjectRef,
    ObjectUid,
    ObjectVersion,
    ResourceKind,
)


class FieldManager(StrEnum):
    """Who owns a field in server-side apply."""

    CONTROLLER = "mizzen-controller"
    SCALER = "mizzen-scaler"
    STATUS = "mizzen-status"


def manager_of(kind: ResourceKind) -> FieldManager:
    """Who writes the main part of the objects of a kind."""
    return FieldManager.SCALER if kind == ROLE_SCALER else FieldManager.CONTROLLER


class Subresource(StrEnum):
    """The parts of an object with an own URL that the operator writes."""

    MAIN = ""
    STATUS = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionList:
    """Metadata of every object of a kind, as of `list_version`."""

    items: tuple[ObjectVersion, ...]
    list_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A write happens only if the object still is this one, at this version (None: any)."""

    uid: ObjectUid
    resource_version: int | None = None


class ClusterClient(Protocol):
    """Reads and writes; every answer is a fresh manifest that the caller may keep."""

    async def list_versions(
        self, kind: ResourceKind, *, namespace: str | None, label_selector: str | None
    ) -> VersionList:
        """Metadata of all objects of a kind, read in chunks."""

    async def get(self, ref: ObjectRef) -> Manifest:
        """The live object."""

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """POST by `manager_of` its kind; ConflictError if the name is taken."""

    async def try_create(self, ref: ObjectRef, manifest: Manifest) -> None:
        """POST as a dry run: validation and admission happen, nothing is stored.

        ConflictError if the name is taken, which the API server looks at last: the object itself
        is fine then.
        """

    async def try_apply(
        self, ref: ObjectRef, manifest: Manifest, precondition: Precondition
    ) -> None:
        """Forced server-side apply by the controller as a dry run; nothing is stored."""

    async def create_unread(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """POST whose answer holds metadata only, for objects that must not be read."""

    async def touch_unread(self, ref: ObjectRef, *, uid: ObjectUid | None) -> Manifest:
        """Patch that changes nothing; its answer is the metadata of an object not to be read."""

    async def apply(
        self,
        ref: ObjectRef,
        manifest: Manifest,
        *,
        manager: FieldManager,
        precondition: Precondition,
        subresource: Subresource = Subresource.MAIN,
    ) -> Manifest:
        """Server-side apply, forced, to a known UID only; ConflictError if that is gone."""

    async def replace_in_status(
        self, ref: ObjectRef, fields: Manifest, precondition: Precondition
    ) -> Manifest:
        """Replace some fields of the status, whoever wrote them; None removes one."""

    async def own(
        self, ref: ObjectRef, managed_fields: Sequence[Manifest], precondition: Precondition
    ) -> Manifest:
        """Write who owns which field, and nothing else; ConflictError if the object changed."""

    async def delete(
        self, ref: ObjectRef, precondition: Precondition, *, grace_s: int | None = None
    ) -> Manifest | None:
        """Delete; the object if it lingers, None if it is gone.

        A StatefulSet lingers until its pods have ended, a pod until its node confirms its end
        unless ``grace_s`` is 0, everything else only for finalizers. ``grace_s`` is for pods: the
        seconds until it is killed, None for its own time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call made, for metrics, benchmarks and the clock."""

    verb: str
    resource: str
    status: int
    seconds: float
    date: str | None = None
    """The answer's `Date` header."""


CallObserver = Callable[[CallRecord], None]
