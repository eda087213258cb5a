"""Owns posting Kubernetes Events: one object per occurrence, whose name says which occurrence.

Does not own which occurrences deserve one (`status` decides). Posting the same occurrence twice
meets its own name and changes nothing, so a crash between two writes neither loses nor repeats it.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.cluster.client import ClusterClient
from mizzen_operator.errors import ConflictError, ForbiddenError
from mizzen_operator.spec.wording import moment_text
from mizzen_operator.store import ObjectRef, ResourceKind, StoredObject

logger = logging.getLogger(__name__)

EVENT = ResourceKind(api_version="v1", kind="Event", plural="events")
COMPONENT = "mizzen-operator"
MAX_MESSAGE = 1024
MAX_NAME = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something worth an Event on a service."""

    is_warning: bool
    reason: str
    message: str
    identity: tuple[str, ...]
    """What makes two occurrences the same one; the service's UID is added to it."""


class EventPoster:
    """Posts Events on services."""

    def __init__(
        self, client: ClusterClient, *, now: Callable[[], datetime], instance: str
    ) -> None:
        self._client = client
        self._now = now
        self._instance = instance

    async def post(self, service: StoredObject, occurrence: Occurrence) -> bool:
        """Post unless this occurrence has its Event already; True if posted."""
        text = "\0".join((service.uid, *occurrence.identity))
        suffix = hashlib.sha256(text.encode()).hexdigest()[:16]
        name = f"{service.name}.{suffix}"[-MAX_NAME:]
        stamp = moment_text(self._now())
        ref = ObjectRef(kind=EVENT, namespace=service.namespace, name=name)
        manifest = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": service.namespace},
            "involvedObject": {
                "apiVersion": service.kind.api_version,
                "kind": service.kind.kind,
                "namespace": service.namespace,
                "name": service.name,
                "uid": service.uid,
                "resourceVersion": str(service.resource_version),
            },
            "type": "Warning" if occurrence.is_warning else "Normal",
            "reason": occurrence.reason,
            "message": occurrence.message[:MAX_MESSAGE],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._client.create(ref, manifest)
        except ConflictError:
            return False
        except ForbiddenError as error:
            # A namespace that ends takes no Events; what they tell of matters more.
            logger.warning("no Event for %s: %s", service.ref, error)
            return False
        return True
