"""Owns what is known of weights that are here: files, hashes, origin, the model's sizes. Pure.

JSON names are a contract with the operator and with whoever verifies a folder by hand.
"""

import msgspec

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason

MANIFEST_VERSION = 1
MAX_TERMINATION_BYTES = 4000
"""Of 4096 that Kubernetes takes from a container."""


class ExpertFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Experts of a mixture; ``num_layers`` have them, the others are dense."""

    num_experts: int
    num_chosen: int
    intermediate_size: int
    num_layers: int


class ShapeFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the formula of a GPU's memory needs of a model (``model_executor/memory_estimate``).

    ``file_format``: safetensors or gguf. ``fp8_scales``: matrices are stored as FP8, with scales of
    rows or blocks.
    """

    architecture: str
    file_format: str
    context_length: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_embeddings: bool
    fp8_scales: str | None = None
    has_fp8_kv: bool = False
    experts: ExpertFacts | None = None


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file; the path is relative to the model's folder."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``allow`` are the patterns that files were chosen by; ``facts`` None for unknown models."""

    version: int = MANIFEST_VERSION
    source: str
    allow: tuple[str, ...] = ()
    resolved_revision: str
    files: tuple[ManifestFile, ...]
    total_bytes: int
    facts: ShapeFacts | None = None


class Termination(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a run ended, for the container's termination message; ``num_bytes`` are on disk."""

    reason: str
    message: str
    resolved_revision: str = ""
    num_bytes: int = msgspec.field(default=0, name="bytes")
    facts: ShapeFacts | None = None


def encode_manifest(manifest: Manifest) -> bytes:
    """As JSON that people read too."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(content: bytes, place: str) -> Manifest:
    """Raises ``FetchError`` for what is no manifest of this version."""
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        message = f"{place}: is no manifest: {error}; remove the folder and fetch it again"
        raise FetchError(message, reason=FetchReason.VERIFY_FAILED) from error
    if manifest.version != MANIFEST_VERSION:
        message = (
            f"{place}: is a manifest of version {manifest.version}, known is {MANIFEST_VERSION}; "
            "remove the folder and fetch it again"
        )
        raise FetchError(message, reason=FetchReason.VERIFY_FAILED)
    return manifest


def encode_termination(termination: Termination) -> bytes:
    """As JSON that fits; the sentence is cut where it does not."""
    content = msgspec.json.encode(termination)
    message = termination.message
    while len(content) > MAX_TERMINATION_BYTES and message:
        # No character takes more than 6 bytes in JSON.
        surplus = max(1, (len(content) - MAX_TERMINATION_BYTES) // 6)
        message = message[: max(0, len(message) - surplus)]
        content = msgspec.json.encode(msgspec.structs.replace(termination, message=message))
    return content
