"""Owns the signature (version 4) of requests to S3. Pure.

Own code rather than the vendor's library: two kinds of GET are signed, which takes a page, and the
library would add 25 MB to every image while its transfers cannot be continued after a crash.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """Who asks; ``session_token`` is empty for lasting ones."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Request:
    """What is signed: ``path`` as it is sent, percent-encoded once; header names in lower case."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body_sha256: str = EMPTY_SHA256


def encode_key(key: str) -> str:
    """Encode a key for a path, as the signature wants it."""
    return quote(key, safe="/-_.~")


def encode_query(query: Mapping[str, str]) -> str:
    """The query in the order and form that is signed."""
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in query.items())
    return "&".join(f"{key}={value}" for key, value in pairs)


def signed_headers(
    request: S3Request, credentials: AwsCredentials, *, region: str, now: datetime
) -> dict[str, str]:
    """All headers to send, the host's apart; ``now`` is UTC."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        **request.headers,
        "x-amz-content-sha256": request.body_sha256,
        "x-amz-date": stamp,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    to_sign = {**headers, "host": request.host}
    names = ";".join(sorted(to_sign))
    canonical = "\n".join(
        (
            request.method,
            request.path,
            encode_query(request.query),
            "".join(f"{name}:{to_sign[name].strip()}\n" for name in sorted(to_sign)),
            names,
            request.body_sha256,
        )
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, digest))
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},"
        f"SignedHeaders={names},Signature={signature}"
    )
    return headers
