"""What is read of an image's documents, and what is refused."""

from collections.abc import Mapping

import pytest

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.fetch.listing import Compression
from mizzen_worker.fetch.oci_documents import (
    choose_manifest,
    parse_challenge,
    read_layers,
    token_query,
)

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
TITLE = "org.opencontainers.image.title"


def _entry(digest: str, architecture: str | None = None, os: str = "linux") -> dict[str, object]:
    if architecture is None:
        return {"digest": digest}
    return {"digest": digest, "platform": {"architecture": architecture, "os": os}}


@pytest.mark.parametrize(
    ("entries", "digest"),
    [
        ([_entry(A)], A),
        ([_entry(A, "arm64"), _entry(B, "amd64")], B),
        ([_entry(A, "s390x")], A),
        ([_entry(A, "amd64", "windows"), _entry(B, "amd64")], B),
        ([_entry(A, "amd64"), _entry(B, "unknown", "unknown")], A),
    ],
)
def test_the_manifest_of_a_machine(entries: list[Mapping[str, object]], digest: str) -> None:
    assert choose_manifest({"manifests": entries}, "amd64") == digest


@pytest.mark.parametrize(
    "index",
    [
        {"manifests": []},
        {"manifests": [_entry(A), _entry(B)]},
        {"manifests": [_entry(A, "amd64"), _entry(B, "amd64")]},
        {"manifests": [_entry("sha512:aa")]},
        {"manifests": [7]},
        {},
    ],
)
def test_an_index_without_one_is_refused(index: Mapping[str, object]) -> None:
    with pytest.raises(FetchError):
        choose_manifest(index, "amd64")


def _layer(**changes: object) -> dict[str, object]:
    return {"digest": A, "size": 1, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"} | (
        changes
    )


@pytest.mark.parametrize(
    ("media_type", "compression"),
    [
        ("application/vnd.oci.image.layer.v1.tar", Compression.NONE),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Compression.GZIP),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Compression.ZSTD),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression.GZIP),
    ],
)
def test_layers_that_are_archives(media_type: str, compression: Compression) -> None:
    listing = read_layers({"layers": [_layer(mediaType=media_type)]}, [])
    (archive,) = listing.archives
    assert archive.compression is compression
    assert archive.blob.path == f".mizzen/layers/{'a' * 64}"


def test_layers_that_are_files() -> None:
    titled = _layer(annotations={TITLE: "m.gguf"})
    unsafe = _layer(annotations={TITLE: "m.py"}, digest=B)
    listing = read_layers({"layers": [titled, unsafe]}, [])
    assert [file.path for file in listing.files] == ["m.gguf"]
    assert not listing.archives
    folder = _layer(annotations={TITLE: "m", "io.deis.oras.content.unpack": "true"})
    assert len(read_layers({"layers": [folder]}, []).archives) == 1


def test_a_layer_that_comes_twice_counts_where_it_is_last() -> None:
    layers = [_layer(), _layer(digest=B), _layer()]
    found = read_layers({"layers": layers}, []).archives
    assert [archive.blob.locator for archive in found] == [B, A]


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [_layer(mediaType="application/vnd.in-toto+json")],
        [_layer(size=-1)],
        [_layer(size="7")],
        [_layer(digest="sha256:short")],
        [_layer(annotations={TITLE: "m.pt"})],
        [_layer(annotations={TITLE: "../m.gguf"})],
        [_layer(annotations={TITLE: "../m.gguf"}), _layer(digest=B)],
        [_layer()] * 1001,
    ],
)
def test_what_no_model_comes_of_is_refused(layers: list[Mapping[str, object]]) -> None:
    with pytest.raises(FetchError):
        read_layers({"layers": layers}, [])


@pytest.mark.parametrize(
    ("header", "scheme", "query"),
    [
        (
            'Bearer realm="https://a/t",service="s p",scope="repository:x:pull"',
            "bearer",
            "service=s%20p&scope=repository%3Ax%3Apull",
        ),
        ("bearer realm=https://a/t , scope=x", "bearer", "scope=x"),
        ('Basic realm="r"', "basic", ""),
        ("Negotiate", "negotiate", ""),
        ("", "", ""),
    ],
)
def test_what_a_registry_wants_to_know(header: str, scheme: str, query: str) -> None:
    found, parameters = parse_challenge(header)
    assert (found, token_query(parameters)) == (scheme, query)
