"""Fetching images and artifacts from a registry."""

import hashlib
import tarfile
from collections.abc import Mapping

import pytest
from tests.worker.fetch.faulty_server import Fault, Reply
from tests.worker.fetch.registry_server import (
    INDEX,
    MANIFEST,
    PASSWORD,
    USER,
    Registry,
    packed,
    registry_with,
)
from tests.worker.fetch.small_model import Fetcher, read_folder

TITLE = "org.opencontainers.image.title"


def _below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}{name}": body for name, body in files.items()}


def _artifact(registry: Registry, files: Mapping[str, bytes]) -> str:
    """What ORAS pushes: each file a layer, of a type that says nothing."""
    layers = [
        registry.put_blob(body)
        | {"annotations": {TITLE: name}, "mediaType": "application/vnd.oci.image.layer.v1.tar"}
        for name, body in files.items()
    ]
    return registry.put_image(layers)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_the_models_folder_of_an_image(
    fetcher: Fetcher, files: dict[str, bytes], compression: str
) -> None:
    system = {"etc/passwd": b"root", "usr/share/x/data.json": b"{}", "usr/lib/words.txt": b"w"}
    layers = [system, _below("./models/", files)]
    with registry_with(layers, compression) as registry:
        outcome = fetcher.fetch(registry.source)
        digest = registry.manifests["v1"][1]
    assert outcome.status == 0, outcome.message
    assert read_folder(fetcher.folder / "tiny") == files
    assert outcome.termination["resolvedRevision"] == f"sha256:{hashlib.sha256(digest).hexdigest()}"
    assert outcome.termination["facts"]
    assert fetcher.run("--verify", str(fetcher.folder / "tiny")).status == 0


def test_files_that_are_layers(fetcher: Fetcher, files: dict[str, bytes]) -> None:
    with registry_with() as registry:
        _artifact(registry, files | {"model.py": b"1"})
        registry.server.faults.append(Fault("/blobs/", 2, cut_after=1000))
        assert fetcher.fetch(registry.source).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_files_beside_an_archive(fetcher: Fetcher, files: dict[str, bytes]) -> None:
    weights = {name: body for name, body in files.items() if name.endswith(".safetensors")}
    rest = {name: body for name, body in files.items() if name not in weights}
    with registry_with() as registry:
        body, media_type = packed(rest, "gzip")
        layers = [registry.put_blob(body) | {"mediaType": media_type}]
        layers += [
            registry.put_blob(body) | {"annotations": {"org.cncf.model.filepath": name}}
            for name, body in weights.items()
        ]
        registry.put_image(layers)
        assert fetcher.fetch(registry.source).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_upper_layers_win(fetcher: Fetcher) -> None:
    lower = {"models/a.gguf": b"old", "models/notes.txt": b"n", "models/sub/x.json": b"{}"}
    upper = {"models/a.gguf": b"new", "models/.wh.notes.txt": b"", "models/sub/y.json": b"[]"}
    top = {"models/sub/z.json": b"1", "models/sub/.wh..wh..opq": b""}
    with registry_with([lower, upper, top]) as registry:
        assert fetcher.fetch(registry.source).status == 0
    assert read_folder(fetcher.folder / "tiny") == {"a.gguf": b"new", "sub/z.json": b"1"}


def test_the_manifest_of_this_machine_is_taken_from_an_index(
    fetcher: Fetcher, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with registry_with() as registry:
        other = _artifact(registry, {"a.gguf": b"other"})
        mine = _artifact(registry, files)
        entries = [
            {"digest": digest, "mediaType": MANIFEST, "platform": {"architecture": a, "os": o}}
            for digest, a, o in (
                (other, "amd64", "linux"),
                (mine, "arm64", "linux"),
                (other, "unknown", "unknown"),
            )
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        digest = registry.put_manifest(index)
        outcome = fetcher.fetch(registry.source)
    assert outcome.termination["resolvedRevision"] == digest
    assert read_folder(fetcher.folder / "tiny") == files


@pytest.mark.parametrize("redirects", [False, True])
def test_a_private_registry_gives_tokens(
    fetcher: Fetcher, files: dict[str, bytes], *, redirects: bool
) -> None:
    fetcher.environment |= {"OCI_USERNAME": USER, "OCI_PASSWORD": PASSWORD}
    with registry_with() as registry:
        registry.is_private, registry.redirects, registry.token_uses = True, redirects, 2
        _artifact(registry, files)
        outcome = fetcher.fetch(registry.source, "--parallel", "1")
        assert outcome.status == 0, outcome.message
        assert registry.server.paths().count("/token") > 1, "tokens grow old"
        assert bool(registry.store.requests) == redirects
    assert read_folder(fetcher.folder / "tiny") == files


def test_wrong_credentials_are_refused_and_not_shown(
    fetcher: Fetcher, capsys: pytest.CaptureFixture[str]
) -> None:
    fetcher.environment |= {"OCI_USERNAME": USER, "OCI_PASSWORD": "not-this-one"}
    with registry_with() as registry:
        registry.is_private = True
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "Unauthorized")
    assert "not-this-one" not in outcome.message + capsys.readouterr().err


def test_an_unknown_tag_is_not_found(fetcher: Fetcher) -> None:
    with registry_with() as registry:
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "NotFound")
    assert "MANIFEST_UNKNOWN" in outcome.message


def test_a_pinned_digest_must_be_that_of_the_manifest(
    fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    with registry_with() as registry:
        digest = _artifact(registry, files)
        forged = Reply(body=b'{"layers": []}')
        registry.server.faults.append(Fault("/manifests/", 99, reply=forged))
        outcome = fetcher.fetch(f"{registry.source}@{digest}")
        assert (outcome.status, outcome.reason) == (1, "VerifyFailed")
        registry.server.faults.clear()
        assert fetcher.fetch(f"{registry.source}@{digest}").status == 0


def test_a_layer_that_is_not_its_digest_is_refused(
    fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    with registry_with([files]) as registry:
        registry.server.faults.append(Fault("/blobs/", 99, change=lambda b: b[:-1] + b"X"))
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "VerifyFailed")


@pytest.mark.parametrize(
    "name", ["../evil.json", "/tmp/evil.json", "models/../../evil.json", ".mizzen/manifest.json"]
)
def test_entries_that_lead_out_are_refused(fetcher: Fetcher, name: str) -> None:
    with registry_with([{"models/a.gguf": b"a", name: b"{}"}]) as registry:
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "plain path" in outcome.message
    assert not list(fetcher.folder.parent.glob("**/evil.json"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_among_the_models_files_are_refused(fetcher: Fetcher, kind: bytes) -> None:
    link = tarfile.TarInfo("models/config.json")
    link.type, link.linkname = kind, "/etc/passwd"
    elsewhere = tarfile.TarInfo("etc/localtime.txt")
    elsewhere.type, elsewhere.linkname = tarfile.SYMTYPE, "../usr/x"
    device = tarfile.TarInfo("models/device.json")
    device.type = tarfile.CHRTYPE
    with registry_with() as registry:
        for extra, is_fine in (([elsewhere, device], True), ([link], False)):
            body, media_type = packed({"models/a.gguf": b"a"}, "gzip", extra)
            registry.put_image([registry.put_blob(body) | {"mediaType": media_type}])
            outcome = fetcher.fetch(registry.source, "--name", f"m{is_fine}")
            assert (outcome.status == 0) == is_fine, outcome.message
    assert "models/config.json: is a link" in outcome.message
    assert read_folder(fetcher.folder / "mTrue") == {"a.gguf": b"a"}


def test_what_unpacks_to_more_than_allowed_is_refused(fetcher: Fetcher) -> None:
    with registry_with([{"models/a.gguf": bytes(5_000_000)}]) as registry:
        outcome = fetcher.fetch(registry.source, "--max-bytes", "1000000")
    assert (outcome.status, outcome.reason) == (1, "NoSpace")
    assert not (fetcher.folder / "tiny").exists()


def test_a_broken_archive_is_refused(fetcher: Fetcher) -> None:
    with registry_with() as registry:
        body, media_type = packed({"models/a.gguf": bytes(100_000)}, "gzip")
        registry.put_image([registry.put_blob(body[:-50]) | {"mediaType": media_type}])
        outcome = fetcher.fetch(registry.source)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert "no sound archive" in outcome.message
