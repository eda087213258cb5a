"""What is written beside the weights and into the termination message."""

import json

import pytest

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.fetch.manifest import (
    Manifest,
    ManifestFile,
    Termination,
    decode_manifest,
    encode_manifest,
    encode_termination,
)

MANIFEST = Manifest(
    source="hf://o/n@main",
    resolved_revision="c" * 40,
    files=(ManifestFile(path="a.gguf", size=1, sha256="d" * 64),),
    total_bytes=1,
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    content = encode_manifest(MANIFEST)
    assert decode_manifest(content, "m") == MANIFEST
    assert set(json.loads(content)) == {
        *("version", "source", "allow", "resolvedRevision", "files", "totalBytes", "facts")
    }


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no manifest"),
        (b"{}", "is no manifest"),
        (encode_manifest(MANIFEST).replace(b'"version": 1', b'"version": 2'), "version 2"),
    ],
)
def test_another_one_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(FetchError) as caught:
        decode_manifest(content, "m")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("message", ["", "short", "x" * 9000, "ü" * 5000, '"\\' * 5000])
def test_a_termination_message_fits(message: str) -> None:
    content = encode_termination(Termination(reason="NotFound", message=message, num_bytes=5))
    assert len(content) <= 4000
    found = json.loads(content)
    assert set(found) == {"reason", "message", "resolvedRevision", "bytes", "facts"}
    assert message.startswith(found["message"])
    assert found["message"] == message or len(content) > 3900
