"""Owns what a service asks of the cluster's Gateways: an HTTPRoute and an InferencePool.

Does not own whether the cluster has the APIs (``store``), nor Gateways and endpoint pickers, which
users bring. What the API server would fill in is written out, so that nothing ever seems to drift.
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.render.objects import metadata
from mizzen_operator.render.services import front_role, front_selector
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.routing import HttpRoute, InferencePool, ParentRef
from mizzen_operator.worker_contract import PORT_HTTP

GATEWAY_GROUP = "gateway.networking.k8s.io"
ROUTE_API = f"{GATEWAY_GROUP}/v1"
POOL_API = "inference.networking.k8s.io/v1"
HTTP_ROUTE, INFERENCE_POOL = "HTTPRoute", "InferencePool"
_NO_TIMEOUT = "0s"
_CORE_SERVICE = {"group": "", "kind": "Service"}


def asked_routes(resolved: Resolved) -> Mapping[str, str]:
    """Kinds of objects that the spec asks for, and the field that does; all have its name."""
    routing = resolved.spec.routing
    fields = (
        (HTTP_ROUTE, "httpRoute", routing.http_route),
        (INFERENCE_POOL, "inferencePool", routing.inference_pool),
    )
    return {kind: f"spec.routing.{name}" for kind, name, asked in fields if asked is not None}


def route_objects(resolved: Resolved) -> list[dict[str, Any]]:
    """The objects asked for."""
    route, pool = resolved.spec.routing.http_route, resolved.spec.routing.inference_pool
    objects = [] if route is None else [_http_route(resolved, route)]
    return objects if pool is None else [*objects, _inference_pool(resolved, pool)]


def _http_route(resolved: Resolved, asked: HttpRoute) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "matches": [{"path": {"type": "PathPrefix", "value": asked.path}}],
        "backendRefs": [
            {
                **_CORE_SERVICE,
                "name": resolved.name,
                "port": resolved.spec.routing.service.port,
                "weight": 1,
            }
        ],
        "timeouts": {"request": _NO_TIMEOUT},
    }
    if asked.path != "/":
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    hostnames = {"hostnames": list(asked.hostnames)} if asked.hostnames else {}
    return {
        "apiVersion": ROUTE_API,
        "kind": HTTP_ROUTE,
        "metadata": metadata(resolved, resolved.name, role=front_role(resolved)),
        "spec": {
            "parentRefs": [_parent(ref) for ref in asked.parent_refs],
            **hostnames,
            "rules": [rule],
        },
    }


def _parent(ref: ParentRef) -> dict[str, str]:
    place = {"namespace": ref.namespace, "sectionName": ref.section_name}
    return {
        "group": GATEWAY_GROUP,
        "kind": "Gateway",
        "name": ref.name,
        **{key: value for key, value in place.items() if value is not None},
    }


def _inference_pool(resolved: Resolved, asked: InferencePool) -> dict[str, Any]:
    picker = asked.endpoint_picker_ref
    return {
        "apiVersion": POOL_API,
        "kind": INFERENCE_POOL,
        "metadata": metadata(resolved, resolved.name, role=front_role(resolved)),
        "spec": {
            "selector": {"matchLabels": front_selector(resolved)},
            "targetPorts": [{"number": PORT_HTTP}],
            "endpointPickerRef": {
                **_CORE_SERVICE,
                "name": picker.name,
                "port": {"number": picker.port},
                "failureMode": asked.failure_mode,
            },
        },
    }
