"""Fetching from a real S3 server, directly and through a proxy that cuts and refuses."""

import base64
import zlib
from collections.abc import Iterator

import pytest
from tests.worker.fetch.faulty_server import Fault, FaultyServer, Reply, serving
from tests.worker.fetch.s3_server import S3Server, s3_server
from tests.worker.fetch.small_model import Fetcher, read_folder, unwanted_files

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.fetch import part_file
from mizzen_worker.fetch.listing import HashKind, Stated
from mizzen_worker.fetch.s3 import Page, read_page, stated_hash

WEIGHTS = "model-00001-of-00002.safetensors"
SLOW_DOWN = Reply(
    status=503, body=b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def bucket(
    server: S3Server, request: pytest.FixtureRequest, fetcher: Fetcher, files: dict[str, bytes]
) -> Iterator[tuple[str, FaultyServer]]:
    """A prefix of each test's own with a model, and the way to it that has faults."""
    prefix = request.node.name.replace("[", "-").replace("]", "")
    for name, body in (files | unwanted_files()).items():
        server.put(f"{prefix}/tiny/{name}", body)
    server.put(f"{prefix}/tiny-other/config.json", b"{}")
    with serving(server.forward) as proxy:
        fetcher.environment |= server.environment(proxy.url)
        yield f"s3://models/{prefix}/tiny", proxy


def _key(source: str, name: str) -> str:
    return f"{source.removeprefix('s3://models/')}/{name}"


def test_all_below_a_prefix_is_fetched(
    server: S3Server,
    bucket: tuple[str, FaultyServer],
    fetcher: Fetcher,
    files: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, _ = bucket
    server.put(_key(source, "sub folder/é+x.json"), b"{}")
    fetcher.environment |= server.environment()
    outcome = fetcher.fetch(source)
    assert outcome.status == 0, outcome.message
    assert read_folder(fetcher.folder / "tiny") == files | {"sub folder/é+x.json": b"{}"}
    assert str(outcome.termination["resolvedRevision"]).startswith("etags-sha256:")
    told = capsys.readouterr()
    assert fetcher.environment["AWS_SECRET_ACCESS_KEY"] not in told.err + told.out
    assert fetcher.run("--verify", str(fetcher.folder / "tiny")).status == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "Unauthorized"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "Unauthorized"),
        ({"AWS_ACCESS_KEY_ID": ""}, "Unauthorized"),
    ],
)
def test_wrong_keys_are_refused(
    bucket: tuple[str, FaultyServer], fetcher: Fetcher, change: dict[str, str], reason: str
) -> None:
    fetcher.environment |= change
    outcome = fetcher.fetch(bucket[0])
    assert (outcome.status, outcome.reason) == (1, reason)
    assert "wrong" not in outcome.message


def test_what_is_not_there_is_not_found(server: S3Server, fetcher: Fetcher) -> None:
    fetcher.environment |= server.environment()
    assert fetcher.fetch("s3://no-such-bucket/a").reason == "NotFound"
    outcome = fetcher.fetch("s3://models/nothing")
    assert (outcome.status, outcome.reason) == (1, "NotFound")
    assert "holds no file" in outcome.message


def test_cuts_and_slow_downs_are_overcome(
    bucket: tuple[str, FaultyServer], fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    source, proxy = bucket
    proxy.faults += [
        Fault(WEIGHTS, 2, cut_after=90_000),
        Fault("tokenizer.json", 2, reply=SLOW_DOWN),
        Fault("/models", 1, reply=SLOW_DOWN),
    ]
    assert fetcher.fetch(source).status == 0
    assert read_folder(fetcher.folder / "tiny") == files
    asked = [r.headers.get("range") for r in proxy.requests if WEIGHTS in r.path]
    assert asked == [None, None, "bytes=90000-", "bytes=180000-"], "HEAD, then three GETs"


def test_wrong_bytes_are_noticed_by_checksum_and_etag(
    server: S3Server, bucket: tuple[str, FaultyServer], fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    source, proxy = bucket
    crc32 = base64.b64encode(zlib.crc32(files[WEIGHTS]).to_bytes(4)).decode()
    server.put(_key(source, WEIGHTS), files[WEIGHTS], {"x-amz-checksum-crc32": crc32})
    for name in (WEIGHTS, "tokenizer.json"):
        proxy.faults.append(Fault(name, change=lambda body: b"X" + body[1:]))
    assert fetcher.fetch(source).status == 0
    assert read_folder(fetcher.folder / "tiny") == files


def test_an_object_that_changes_is_listed_again(
    server: S3Server, bucket: tuple[str, FaultyServer], fetcher: Fetcher, files: dict[str, bytes]
) -> None:
    source, proxy = bucket
    proxy.faults.append(Fault(WEIGHTS, 99, reply=Reply(status=500)))
    assert fetcher.fetch(source).status == 75
    proxy.faults.clear()
    changed = bytes(len(files[WEIGHTS]))
    server.put(_key(source, WEIGHTS), changed)
    proxy.bytes_sent = 0
    assert fetcher.fetch(source).status == 0
    assert read_folder(fetcher.folder / "tiny") == files | {WEIGHTS: changed}
    # What did not change came once, with the first run.
    assert proxy.bytes_sent < len(changed) + 20_000


def test_without_a_hash_only_what_is_synced_is_continued(
    server: S3Server,
    bucket: tuple[str, FaultyServer],
    fetcher: Fetcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_file, "SYNC_BYTES", 1 << 20)
    source, proxy = bucket
    parts = [bytes([1]) * (5 << 20), bytes([2]) * 1000]
    server.put_in_parts(_key(source, WEIGHTS), parts)
    proxy.faults.append(Fault(WEIGHTS, cut_after=(3 << 20) + 5000))
    fetcher.policy = fetcher.policy.__class__(max_failures=1)
    assert fetcher.fetch(source, "--parallel", "1").status == 75
    assert fetcher.fetch(source, "--parallel", "1").status == 0
    assert (fetcher.folder / "tiny" / WEIGHTS).read_bytes() == b"".join(parts)
    asked = [r.headers.get("range") for r in proxy.requests if WEIGHTS in r.path]
    start = int(str(asked[-1]).removeprefix("bytes=").removesuffix("-"))
    assert 2 << 20 < start <= 3 << 20


def test_the_pages_of_a_list() -> None:
    document = b"""<?xml version="1.0"?>
    <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
      <IsTruncated>true</IsTruncated><NextContinuationToken>t/1=</NextContinuationToken>
      <Contents><Key>a &amp; b</Key><Size>7</Size><ETag>&quot;e&quot;</ETag></Contents>
    </ListBucketResult>"""
    assert read_page(document, "x") == Page(objects=(("a & b", 7, "e"),), following="t/1=")
    last = document.replace(b">true<", b">false<")
    assert read_page(last, "x").following == ""


@pytest.mark.parametrize("document", [b"", b"<html>", b"<a><Contents><Key>k</Key></Contents></a>"])
def test_what_is_no_list_is_refused(document: bytes) -> None:
    with pytest.raises(FetchError, match="is no list of objects"):
        read_page(document, "http://x/models")


MD5 = "5d41402abc4b2a76b9719d911017c592"


@pytest.mark.parametrize(
    ("headers", "stated"),
    [
        ({"etag": f'"{MD5}"'}, Stated(HashKind.MD5, MD5)),
        ({"etag": f'"{MD5}"', "x-amz-server-side-encryption": "aws:kms"}, None),
        ({"etag": f'"{MD5}-2"'}, None),
        ({"etag": '"x"', "x-amz-checksum-crc32": "NhCmhg=="}, Stated(HashKind.CRC32, "3610a686")),
        ({"x-amz-checksum-crc32": "NhCmhg==", "x-amz-checksum-type": "COMPOSITE"}, None),
        ({"x-amz-checksum-sha256": "not base64"}, None),
        ({}, None),
    ],
)
def test_what_headers_say_of_the_content(headers: dict[str, str], stated: Stated | None) -> None:
    assert stated_hash(headers) == stated
