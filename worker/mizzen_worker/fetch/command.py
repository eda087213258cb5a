"""Owns ``mizzen fetch-weights``: arguments, exit status, termination message; owns no download."""

import argparse
import logging
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mizzen_worker.config.env import FetchEnvironment
from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.aws_signature import AwsCredentials
from mizzen_worker.fetch.backend import Backend
from mizzen_worker.fetch.http_client import HttpClient
from mizzen_worker.fetch.hub import HubBackend
from mizzen_worker.fetch.manifest import Manifest, Termination, encode_termination
from mizzen_worker.fetch.oci import OciAccess, OciBackend
from mizzen_worker.fetch.progress import Progress, exposed, reported
from mizzen_worker.fetch.pull import Job, Tools, find_whole, pull
from mizzen_worker.fetch.retry import RetryPolicy
from mizzen_worker.fetch.s3 import S3Access, S3Backend
from mizzen_worker.fetch.source import (
    HubSource,
    OciSource,
    S3Source,
    Source,
    folder_name,
    invalid,
    parse_source,
)
from mizzen_worker.fetch.stopping import Stopping
from mizzen_worker.fetch.verify import read_manifest, require_contents
from mizzen_worker.observability.log import configure_logging

_TERMINATION_FILE = Path("/dev/termination-log")
_MAX_DIGITS, _SHOWN = 16, 80
_DESCRIPTION = """\
Fetch a model's weights into a folder, or verify them. An interrupted run is continued by the next
one; a folder that is there is whole. Only files that run no code when they are loaded are taken:
safetensors, GGUF, JSON, text and tokenizers.

sources: hf://ORG/NAME[@REVISION]               a branch, a tag or a commit of a Hugging Face hub
         s3://BUCKET/PREFIX                     all objects below it
         oci://REGISTRY/NAME:TAG[@sha256:HEX]   an image or an artifact"""
_EPILOG = """\
credentials, from the environment only:
  HF_TOKEN; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; OCI_USERNAME, OCI_PASSWORD
also there: HTTPS_PROXY, HTTP_PROXY, NO_PROXY, and SSL_CERT_FILE for a CA of your own
exit status: 0 done, 1 failed for good, 75 try again

example:
  mizzen fetch-weights --to /models hf://HuggingFaceTB/SmolLM2-135M-Instruct@main"""


@dataclass(slots=True)
class _Outcome:
    """What there is to tell at the end, as far as it is known."""

    progress: Progress
    manifest: Manifest | None = None


def run(
    arguments: Sequence[str], environment: FetchEnvironment, policy: RetryPolicy | None = None
) -> int:
    """Run the command; gives its exit status."""
    termination_file: Path | None = None
    outcome = _Outcome(progress=Progress())
    try:
        given = _parse(arguments, environment)
        termination_file = given.termination_file
        configure_logging(level="info", is_json=not sys.stderr.isatty(), fields={})
        _work(given, environment, policy or RetryPolicy(), outcome)
    except FetchError as error:
        message = _without_secrets(str(error), environment)
        _end(termination_file, error.reason, message, outcome)
        sys.stderr.write(f"mizzen fetch-weights: {error.reason.value}: {message}\n")
        return error.reason.exit_code
    assert outcome.manifest is not None, "work that ends has a manifest"
    message = f"{len(outcome.manifest.files)} files, {outcome.manifest.total_bytes} bytes"
    _end(termination_file, FetchReason.DONE, message, outcome)
    sys.stdout.write(f"{outcome.manifest.source} {outcome.manifest.resolved_revision}: {message}\n")
    return 0


def _parse(arguments: Sequence[str], environment: FetchEnvironment) -> argparse.Namespace:
    given = _parser(environment).parse_args(arguments)
    if given.source is None and given.allow and "://" in given.allow[-1]:
        # The last of several patterns, for argparse; no pattern looks like a source.
        given.source = given.allow.pop()
    return given


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> None:  # type: ignore[override]
        text = f"{message}; see mizzen fetch-weights --help"
        raise invalid(text)


def _parser(environment: FetchEnvironment) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mizzen fetch-weights",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", nargs="?", help="where from; see above")
    add("--to", metavar="DIR", type=Path, help="folder that gets the model's folder")
    add(
        "--name",
        metavar="NAME",
        help="name of the model's folder (default: the source's last name)",
    )
    add(
        "--revision",
        metavar="REVISION",
        help="of hf://: a branch, a tag or a commit (default main)",
    )
    add("--allow", metavar="GLOB", nargs="+", action="extend", default=[],
        help="take only files whose path matches one of these")  # fmt: skip
    add("--max-bytes", metavar="BYTES", type=_count(1 << 50), help="refuse more than this")
    add("--parallel", metavar="COUNT", type=_count(64), default=4,
        help="files at once (default %(default)s)")  # fmt: skip
    add("--verify", metavar="FOLDER", type=Path,
        help="fetch nothing: compare every byte of a fetched folder with its manifest")  # fmt: skip
    add("--hf-endpoint", metavar="URL", default=environment.hf_endpoint,
        help="address of the hub (HF_ENDPOINT; default %(default)s)")  # fmt: skip
    add("--s3-endpoint", metavar="URL", default=environment.s3_endpoint,
        help="address of the S3 service (AWS_ENDPOINT_URL; default AWS's)")  # fmt: skip
    add("--s3-region", metavar="REGION", default=environment.s3_region,
        help="its region (AWS_REGION; default %(default)s)")  # fmt: skip
    add("--oci-plain-http", action="store_true", help="ask the registry without TLS")
    add("--termination-file", metavar="PATH", type=Path,
        help=f"file that gets the outcome as JSON (default {_TERMINATION_FILE})")  # fmt: skip
    add("--progress-file", metavar="PATH", type=Path, help="file that gets the progress as JSON")
    add("--metrics-port", metavar="PORT", type=_count(65535), help="port of Prometheus metrics")
    return parser


def _count(most: int) -> Callable[[str], int]:
    def take(text: str) -> int:
        if not text.isdecimal() or len(text) > _MAX_DIGITS or not 1 <= int(text) <= most:
            message = f"{text[:_SHOWN]!r} is not a whole number from 1 to {most}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return take


def _work(
    given: argparse.Namespace,
    environment: FetchEnvironment,
    policy: RetryPolicy,
    outcome: _Outcome,
) -> None:
    progress = outcome.progress
    stopping = Stopping(progress, secrets.SystemRandom().random)
    before = signal.signal(signal.SIGTERM, lambda *_: stopping.stop())
    try:
        with exposed(progress, given.metrics_port), reported(progress, file=given.progress_file):
            if given.verify is not None:
                outcome.manifest = _verify(given, progress, stopping)
            else:
                outcome.manifest = _fetch(given, environment, policy, progress, stopping)
            progress.enter("done")
    finally:
        signal.signal(signal.SIGTERM, before)


def _verify(given: argparse.Namespace, progress: Progress, stopping: Stopping) -> Manifest:
    if given.source is not None:
        msg = "--verify FOLDER takes no SOURCE; leave one of them out"
        raise invalid(msg)
    manifest = read_manifest(given.verify)
    if manifest is None:
        msg = f"{given.verify}: has no manifest; give a folder that was fetched"
        raise invalid(msg)
    progress.enter("verifying")
    progress.expect(manifest.total_bytes)

    def checked(path: str, size: int) -> None:
        stopping.require_going_on()
        progress.note_present(path, size)

    require_contents(given.verify, manifest, num_threads=given.parallel, checked=checked)
    return manifest


def _fetch(
    given: argparse.Namespace,
    environment: FetchEnvironment,
    policy: RetryPolicy,
    progress: Progress,
    stopping: Stopping,
) -> Manifest:
    if given.source is None or given.to is None:
        msg = "SOURCE and --to DIR are needed, or --verify FOLDER; see --help"
        raise invalid(msg)
    source = parse_source(given.source, given.revision)
    job = Job(
        source=source,
        allow=tuple(given.allow),
        to=given.to,
        name=folder_name(source, given.name),
        max_bytes=given.max_bytes,
        num_threads=given.parallel,
        policy=policy,
    )
    found = find_whole(job)
    if found is not None:
        return found
    http = HttpClient(proxies=environment.proxies, num_threads=given.parallel)
    try:
        backend = _backend(source, http, given, environment)
        tools = Tools(backend=backend, http=http, progress=progress, stopping=stopping)
        return pull(job, tools)
    except FetchError as error:
        advice = _advice(error, source, environment)
        if not advice:
            raise
        message = f"{error}; {advice}"
        raise FetchError(message, reason=error.reason) from error
    finally:
        http.close()


def _backend(
    source: Source, http: HttpClient, given: argparse.Namespace, environment: FetchEnvironment
) -> Backend:
    match source:
        case HubSource():
            token = environment.hf_token
            return HubBackend(
                source, http, endpoint=given.hf_endpoint, token=token, allow=given.allow
            )
        case S3Source():
            credentials = AwsCredentials(
                access_key_id=environment.s3_access_key_id,
                secret_access_key=environment.s3_secret_access_key,
                session_token=environment.s3_session_token,
            )
            access = S3Access(
                endpoint=given.s3_endpoint,
                region=given.s3_region,
                credentials=credentials if environment.s3_access_key_id else None,
                now=lambda: datetime.now(tz=UTC),
            )
            return S3Backend(source, http, access, allow=given.allow)
        case OciSource():
            oci = OciAccess(
                username=environment.oci_username,
                password=environment.oci_password,
                is_plain_http=given.oci_plain_http,
            )
            return OciBackend(source, http, oci, allow=given.allow)


def _advice(error: FetchError, source: Source, environment: FetchEnvironment) -> str:
    """What to do about it; empty where the sentence says so itself."""
    match error.reason:
        case FetchReason.UNAUTHORIZED:
            return _credentials_advice(source, environment)
        case FetchReason.NOT_FOUND:
            return _search_advice(source)
        case FetchReason.RATE_LIMITED if error.retry_after_s:
            return f"the server asks to be left alone for {error.retry_after_s:.0f} s"
        case _:
            return ""


def _search_advice(source: Source) -> str:
    match source:
        case HubSource():
            return "check name and revision; what is private is found only with HF_TOKEN"
        case S3Source():
            return "check bucket, prefix, endpoint and region"
        case OciSource():
            return "check registry, name and tag or digest"


def _credentials_advice(source: Source, environment: FetchEnvironment) -> str:
    """What to do about credentials that are refused or missing."""
    match source:
        case HubSource():
            is_given, names = environment.hf_token != "", "HF_TOKEN"
        case S3Source():
            is_given, names = environment.s3_access_key_id != "", "AWS_ACCESS_KEY_ID and its secret"
        case OciSource():
            is_given, names = environment.oci_username != "", "OCI_USERNAME and OCI_PASSWORD"
    terms = ", and accept the model's terms on the hub" if isinstance(source, HubSource) else ""
    if is_given:
        return f"{names} may not read it: give credentials that may{terms}"
    return f"give credentials that may read it in {names}{terms}"


def _without_secrets(text: str, environment: FetchEnvironment) -> str:
    """Whoever answers could repeat what was sent."""
    for secret in environment.secrets():
        text = text.replace(secret, "***")
    return text


def _end(file: Path | None, reason: FetchReason, message: str, outcome: _Outcome) -> None:
    manifest = outcome.manifest
    termination = Termination(
        reason=reason.value,
        message=message,
        resolved_revision="" if manifest is None else manifest.resolved_revision,
        num_bytes=outcome.progress.present_bytes if manifest is None else manifest.total_bytes,
        facts=None if manifest is None else manifest.facts,
    )
    place = file if file is not None else _TERMINATION_FILE
    if file is None and not place.exists():
        return
    try:
        place.write_bytes(encode_termination(termination))
    except OSError as error:
        fields = {"path": str(place), "error": str(error)}
        logging.getLogger(__name__).warning("termination file cannot be written", extra=fields)
