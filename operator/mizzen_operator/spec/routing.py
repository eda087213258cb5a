"""Owns the part of the spec that says how clients reach a service: Service, HTTPRoute, pool.

Does not own rules across fields (``rules``) nor what becomes of it (``render/routes``).
"""

from typing import Annotated, Literal

from pydantic import Field

from mizzen_operator.spec.fields import ObjectName, StrictModel

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN_PATTERN = rf"^{_LABEL}(\.{_LABEL})*$"
HOSTNAME_PATTERN = rf"^(\*\.)?{_LABEL}(\.{_LABEL})*$"
PATH_PATTERN = r"^/$|^(/[-A-Za-z0-9_~][-A-Za-z0-9._~]*)+$"

Domain = Annotated[str, Field(pattern=DOMAIN_PATTERN, min_length=1, max_length=253)]
Hostname = Annotated[str, Field(pattern=HOSTNAME_PATTERN, min_length=1, max_length=253)]
NAMESPACE_PATTERN = f"^{_LABEL}$"
NamespaceName = Annotated[str, Field(pattern=NAMESPACE_PATTERN, min_length=1, max_length=63)]


class ServicePort(StrictModel):
    """The Kubernetes Service that clients talk to; it has the name of the InferenceService."""

    type: Literal["ClusterIP", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """Port of the Service."""


class ParentRef(StrictModel):
    """A Gateway (gateway.networking.k8s.io) that takes the route."""

    name: Domain
    """Name of the Gateway."""
    namespace: NamespaceName | None = None
    """Its namespace; that of the InferenceService when absent."""
    section_name: Domain | None = None
    """Name of one listener of the Gateway; all that fit when absent."""


class HttpRoute(StrictModel):
    """An HTTPRoute (gateway.networking.k8s.io/v1) from Gateways of yours to the Service; without
    a request timeout, which would cut streams."""

    parent_refs: Annotated[tuple[ParentRef, ...], Field(min_length=1, max_length=4)]
    """Gateways that take the route."""
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Host names of the route, such as chat.example.com or *.example.com; those of the Gateway's
    listeners when empty."""
    path: Annotated[str, Field(pattern=PATH_PATTERN, max_length=256)] = "/"
    """Path below which the service answers. Another one than / is taken away before a request
    reaches the service, which the Gateway must be able to do (URLRewrite)."""


class EndpointPicker(StrictModel):
    """A Service in the namespace of the InferenceService behind which an endpoint picker runs."""

    name: ObjectName
    """Name of the Service."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 9002
    """Port of the Service."""


class InferencePool(StrictModel):
    """An InferencePool (inference.networking.k8s.io/v1) of the pods that clients talk to, for
    routes and an endpoint picker of your own."""

    endpoint_picker_ref: EndpointPicker
    """The endpoint picker that chooses a pod for each request; you run it."""
    failure_mode: Literal["FailOpen", "FailClose"] = "FailClose"
    """What a Gateway does while the endpoint picker does not answer: send to any pod (FailOpen) or
    refuse (FailClose)."""


class Routing(StrictModel):
    """How clients reach the service."""

    service: ServicePort = Field(default_factory=ServicePort)
    """The Service."""
    http_route: HttpRoute | None = None
    """An HTTPRoute to the Service; none when absent."""
    inference_pool: InferencePool | None = None
    """An InferencePool of the pods behind the Service; none when absent."""
