"""What a SOURCE means."""

import pytest

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.source import folder_name, is_held, parse_source

DIGEST = f"sha256:{'a' * 64}"
COMMIT = "b" * 40


@pytest.mark.parametrize(
    ("text", "spelling", "name", "pinned"),
    [
        ("hf://gpt2", "hf://gpt2@main", "gpt2", ""),
        ("hf://org/Name-1.5", "hf://org/Name-1.5@main", "Name-1.5", ""),
        ("hf://org/n@refs/pr/1", "hf://org/n@refs/pr/1", "n", ""),
        (f"hf://org/n@{COMMIT}", f"hf://org/n@{COMMIT}", "n", COMMIT),
        ("s3://bucket", "s3://bucket", "bucket", ""),
        ("s3://bucket/a/b c/", "s3://bucket/a/b c", "b c", ""),
        ("oci://r.example:5000/a/b:v1", "oci://r.example:5000/a/b:v1", "b", ""),
        (f"oci://r/b@{DIGEST}", f"oci://r/b@{DIGEST}", "b", DIGEST),
        (f"oci://[::1]:5000/b:v1@{DIGEST}", f"oci://[::1]:5000/b:v1@{DIGEST}", "b", DIGEST),
    ],
)
def test_each_kind(text: str, spelling: str, name: str, pinned: str) -> None:
    source = parse_source(text, None)
    assert (source.text, source.name, source.pinned) == (spelling, name, pinned)
    assert parse_source(source.text, None) == source


def test_a_revision_beside_it() -> None:
    assert parse_source("hf://o/n", "v2").text == "hf://o/n@v2"
    assert parse_source("hf://o/n@v2", "v2").text == "hf://o/n@v2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "org/name",
        "http://x/y",
        "hf://",
        "hf://a/b/c",
        "hf://a/..",
        "hf://a/b@",
        "hf://a/b@../../x",
        "hf://a/b@x y",
        "s3://",
        "s3://UPPER/x",
        "s3://a..b/x",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "s3://bucket/a\nb",
        "oci://registry",
        "oci://registry/name",
        "oci://registry/Name:tag",
        "oci://registry/../name:tag",
        "oci://registry/name:tag@sha256:short",
        "oci://user:pass@registry/name:tag",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(FetchError) as caught:
        parse_source(text, None)
    assert caught.value.reason is FetchReason.INVALID_SOURCE


def test_a_folder_has_a_plain_name() -> None:
    source = parse_source("s3://bucket/a/b c", None)
    assert folder_name(source, "b-c") == "b-c"
    with pytest.raises(FetchError, match="give one with --name"):
        folder_name(source, None)
    for name in ("", ".", "..", ".partial", "a/b", "x" * 129):
        with pytest.raises(FetchError):
            folder_name(source, name)


@pytest.mark.parametrize(
    ("wanted", "held", "revision", "is_same"),
    [
        ("hf://o/n", "hf://o/n@main", COMMIT, True),
        (f"hf://o/n@{COMMIT}", "hf://o/n@main", COMMIT, True),
        (f"hf://o/n@{COMMIT}", "hf://o/n@main", "c" * 40, False),
        (f"hf://o/m@{COMMIT}", "hf://o/n@main", COMMIT, False),
        ("hf://o/n@v1", "hf://o/n@main", COMMIT, False),
        (f"oci://r/n:v1@{DIGEST}", "oci://r/n:v1", DIGEST, True),
        ("oci://r/n:v2", "oci://r/n:v1", DIGEST, False),
        ("s3://b-1/p", "s3://b-1/q", "etags", False),
    ],
)
def test_what_is_held_already(wanted: str, held: str, revision: str, *, is_same: bool) -> None:
    assert is_held(parse_source(wanted, None), held, revision) == is_same
