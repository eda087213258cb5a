"""Owns what a fetched source means: its address for the Job, its folder, what identifies it.

Does not own the fields (``sources``) nor the objects (``render/weights``). Invariant: what has
equal identity may lie on one claim; credentials and the Job's resources are no part of it.
"""

from typing import Any
from urllib.parse import urlsplit

from mizzen_operator.spec.model import Model
from mizzen_operator.spec.sources import HuggingFaceSource, ModelSource, OciSource, S3Source

PORT_HTTPS = 443
PORT_HTTP = 80
_CREDENTIALS = frozenset({"tokenSecretRef", "credentialsSecretRef"})
_NO_PART_OF_CLAIM = frozenset({"retain", "resources"})
Fetched = HuggingFaceSource | S3Source | OciSource


def source_url(source: Fetched, resolved_revision: str = "") -> str:
    """The SOURCE of ``mizzen fetch-weights``; of a registry with the digest, where it is known."""
    if isinstance(source, HuggingFaceSource):
        return f"hf://{source.repository}"
    if isinstance(source, S3Source):
        return f"s3://{source.bucket}/{source.prefix}".rstrip("/")
    is_pinned = "@" in source.image or not resolved_revision
    return f"oci://{source.image}" if is_pinned else f"oci://{source.image}@{resolved_revision}"


def folder_of(source: Fetched) -> str:
    """Name of the folder that the Job makes: the last part of the source without tag or digest."""
    last = source_url(source).rsplit("/", 1)[-1]
    return last.partition("@")[0].partition(":")[0]


def endpoint_of(source: Fetched) -> str:
    """Address that the spec names for the source; empty for the public one."""
    return "" if isinstance(source, OciSource) else source.endpoint or ""


def ports_of(source: Fetched) -> tuple[int, ...]:
    """TCP ports that the Job connects to, redirects of hubs and registries included."""
    if isinstance(source, OciSource):
        address = urlsplit(f"https://{source.image}")
    else:
        address = urlsplit(source.endpoint or "https://")
    scheme_port = PORT_HTTP if address.scheme == "http" else PORT_HTTPS
    # A hub and a registry send the reader on to where the files really are.
    redirects = () if isinstance(source, S3Source) else (PORT_HTTPS,)
    return tuple(sorted({address.port or scheme_port, *redirects}))


def weights_identity(model: Model) -> dict[str, Any]:
    """What the worker pods' weights depend on, as written; of a claim the source alone."""
    source = _written(model.source)
    if model.source.pvc is not None or model.cache is None:
        return source
    fetched = {
        name: {key: item for key, item in part.items() if key not in _CREDENTIALS}
        for name, part in source.items()
    }
    return {**fetched, "cache": _claim_part(model)}


def claim_identity(model: Model) -> dict[str, Any]:
    """What decides which claim the weights lie on: all of the identity but the path inside."""
    identity = weights_identity(model)
    return {
        name: {key: item for key, item in part.items() if key != "path"}
        for name, part in identity.items()
    }


def _claim_part(model: Model) -> dict[str, Any]:
    assert model.cache is not None, "the rules ask for it"
    part = model.cache.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    return {key: item for key, item in part.items() if key not in _NO_PART_OF_CLAIM}


def _written(source: ModelSource) -> dict[str, Any]:
    return source.model_dump(by_alias=True, mode="json", exclude_defaults=True)
