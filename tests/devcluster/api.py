"""Owns the few calls of the Kubernetes API that the local cluster makes for itself.

A plain client over http.client with the cell's certificates, so that it runs before anything is
installed. Not a general client: tests use the real one.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


class ApiError(RuntimeError):
    """The API server refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    """Talks to one API server; a new connection per call.

    connect gives the connected socket: that is how calls reach into the cell's network.
    """

    address: str
    port: int
    context: ssl.SSLContext
    connect: Callable[[tuple[str, int]], socket.socket] = socket.create_connection

    def call(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> Any:
        """Make one call and return its JSON; raises ApiError for an answer of 400 or more."""
        connection = http.client.HTTPSConnection(self.address, self.port, context=self.context)
        plain = self.connect((self.address, self.port))
        plain.settimeout(20)
        connection.sock = self.context.wrap_socket(plain, server_hostname=self.address)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if text.startswith("{") else text

    def is_ready(self) -> bool:
        """Tell whether the API server says that it is ready."""
        try:
            self.call("GET", "/readyz")
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True

    def ensure(self, collection: str, manifest: dict[str, Any]) -> None:
        """Create an object unless it is there."""
        try:
            self.call("POST", collection, manifest)
        except ApiError as error:
            if error.status != 409:
                raise


def admin_context(pki: Path) -> ssl.SSLContext:
    """Return the TLS settings of the cluster's administrator; the server is verified."""
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return context
