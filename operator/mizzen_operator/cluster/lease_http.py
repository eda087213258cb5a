"""Owns reading and writing the Lease over HTTP.

Does not own when that happens (`lease.py`) nor the connection (`real.py`).
"""

from mizzen_operator.cluster.real import KubernetesClient
from mizzen_operator.cluster.request import Request
from mizzen_operator.store import Manifest, ObjectRef


class HttpLeases:
    """`LeaseClient` over a connection of its own, which has no fence and never waits for others."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    async def read(self, ref: ObjectRef) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.get(ref)

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.call(
            Request(
                verb="create",
                resource=str(ref.kind),
                method="POST",
                path=ref.kind.path(namespace=ref.namespace),
                body=manifest,
            )
        )

    async def replace(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.call(
            Request(
                verb="update",
                resource=str(ref.kind),
                method="PUT",
                path=ref.kind.path(namespace=ref.namespace, name=ref.name),
                body=manifest,
            )
        )
