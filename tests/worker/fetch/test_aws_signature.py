"""Signatures of the examples that AWS publishes for version 4 of them."""

from datetime import UTC, datetime

from mizzen_worker.fetch.aws_signature import (
    AwsCredentials,
    S3Request,
    encode_key,
    signed_headers,
)

CREDENTIALS = AwsCredentials(
    access_key_id="AKIAIOSFODNN7EXAMPLE",
    secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    session_token="",
)
NOW = datetime(2013, 5, 24, tzinfo=UTC)
HOST = "examplebucket.s3.amazonaws.com"


def _signature(path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    request = S3Request(method="GET", host=HOST, path=path, query=query, headers=headers)
    signed = signed_headers(request, CREDENTIALS, region="us-east-1", now=NOW)
    return signed["authorization"].rpartition("Signature=")[2]


def test_an_object_with_a_range() -> None:
    assert _signature("/test.txt", {}, {"range": "bytes=0-9"}) == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_query_without_a_value() -> None:
    assert _signature("/", {"lifecycle": ""}, {}) == (
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )


def test_a_list() -> None:
    assert _signature("/", {"prefix": "J", "max-keys": "2"}, {}) == (
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_keys_are_encoded_but_for_slashes() -> None:
    assert encode_key("a b/ü+~.x") == "a%20b/%C3%BC%2B~.x"


def test_nothing_shows_a_secret() -> None:
    assert "wJalr" not in repr(CREDENTIALS)
    assert "AKIA" not in repr(CREDENTIALS)
