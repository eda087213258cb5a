"""What a fetched source means: its address, its folder, the ports on the way, its identity."""

from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.spec.rule_examples import SOURCES

from mizzen_operator.spec.model import Model
from mizzen_operator.spec.weights import (
    claim_identity,
    folder_of,
    ports_of,
    source_url,
    weights_identity,
)

DIGEST = f"sha256:{'0' * 64}"


def model(source: str, cache: dict[str, Any] | None = None, **fields: Any) -> Model:
    given = {"pvc": None, source: {**SOURCES[source], **fields}}
    return resolved(model={"source": given, "cache": {"size": "1Gi", **(cache or {})}}).spec.model


@pytest.mark.parametrize(
    ("source", "fields", "url", "folder"),
    [
        ("huggingFace", {}, "hf://org/model", "model"),
        ("s3", {}, "s3://models/team/model", "model"),
        ("s3", {"prefix": "a/b/"}, "s3://models/a/b", "b"),
        ("s3", {"prefix": ""}, "s3://models", "models"),
        ("oci", {}, "oci://registry.example/team/model:1", "model"),
        ("oci", {"image": f"r:5000/a/b@{DIGEST}"}, f"oci://r:5000/a/b@{DIGEST}", "b"),
    ],
)
def test_address_and_folder(source: str, fields: dict[str, Any], url: str, folder: str) -> None:
    fetched = model(source, **fields).source.fetched
    assert fetched is not None
    assert source_url(fetched) == url
    assert folder_of(fetched) == folder


def test_a_tag_that_was_resolved_is_fetched_again_by_its_digest() -> None:
    fetched = model("oci").source.fetched
    assert fetched is not None
    assert source_url(fetched, DIGEST) == f"oci://registry.example/team/model:1@{DIGEST}"


@pytest.mark.parametrize(
    ("source", "fields", "ports"),
    [
        ("huggingFace", {}, (443,)),
        ("huggingFace", {"endpoint": "http://hub"}, (80, 443)),
        ("huggingFace", {"endpoint": "https://hub:8443/x"}, (443, 8443)),
        ("s3", {"endpoint": "http://s3:9000"}, (9000,)),
        ("s3", {}, (443,)),
        ("oci", {"image": "r:5000/a/b:1"}, (443, 5000)),
    ],
)
def test_ports(source: str, fields: dict[str, Any], ports: tuple[int, ...]) -> None:
    fetched = model(source, **fields).source.fetched
    assert fetched is not None
    assert ports_of(fetched) == ports


@pytest.mark.parametrize(
    ("cache", "fields"),
    [
        ({"retain": True}, {}),
        ({"resources": {"limits": {"cpu": 1}}}, {}),
        ({}, {"tokenSecretRef": {"name": "a", "key": "b"}}),
        ({}, {"revision": "main"}),
    ],
)
def test_what_does_not_change_the_weights_is_no_part_of_them(
    cache: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert weights_identity(model("huggingFace", cache, **fields)) == weights_identity(
        model("huggingFace")
    )


@pytest.mark.parametrize(
    ("cache", "fields"),
    [
        ({"size": "2Gi"}, {}),
        ({"storageClassName": "fast"}, {}),
        ({"accessMode": "ReadWriteOnce"}, {}),
        ({"refresh": "1"}, {}),
        ({}, {"revision": "v1"}),
        ({}, {"files": ["*.gguf"]}),
        ({}, {"endpoint": "https://mirror"}),
    ],
)
def test_what_changes_the_weights_is_another_claim(
    cache: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert claim_identity(model("huggingFace", cache, **fields)) != claim_identity(
        model("huggingFace")
    )


def test_another_path_is_another_revision_on_the_same_claim() -> None:
    one, two = model("s3"), model("s3", path="sub")
    assert weights_identity(one) != weights_identity(two)
    assert claim_identity(one) == claim_identity(two)
