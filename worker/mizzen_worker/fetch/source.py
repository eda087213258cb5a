"""Owns what a SOURCE of weights means: its parts, its one spelling, its folder's name. Pure."""

import re
from dataclasses import dataclass

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason

DEFAULT_REVISION = "main"
_FORMS = "hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX or oci://REGISTRY/NAME:TAG[@DIGEST]"
_HUB_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_HUB_REVISION = re.compile(r"[\w][\w./+-]{0,199}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[^\x00-\x1f\x7f\\]{0,900}")
_OCI = re.compile(
    r"(?P<registry>[A-Za-z0-9.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\](:\d{1,5})?)/"
    r"(?P<repository>[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_FOLDER = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A repository of a Hugging Face hub; ``revision`` is a branch, a tag or a commit."""

    repository: str
    revision: str

    @property
    def text(self) -> str:
        """The one spelling."""
        return f"{self.place}@{self.revision}"

    @property
    def place(self) -> str:
        """The same, of whatever revision."""
        return f"hf://{self.repository}"

    @property
    def pinned(self) -> str:
        """The revision where it can be no other one day; else empty."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""

    @property
    def name(self) -> str:
        """Name of the folder where none is given."""
        return self.repository.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Source:
    """All objects of a bucket below ``prefix/``, or of the whole bucket where it is empty."""

    bucket: str
    prefix: str

    @property
    def text(self) -> str:
        """The one spelling."""
        return self.place

    @property
    def place(self) -> str:
        """The same: a bucket has no revisions."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def pinned(self) -> str:
        """Nothing is."""
        return ""

    @property
    def name(self) -> str:
        """Name of the folder where none is given."""
        return self.prefix.rpartition("/")[2] or self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OciSource:
    """An image or artifact; ``reference`` is its tag, or its digest where there is one."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag

    @property
    def text(self) -> str:
        """The one spelling."""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.place}{tag}{digest}"

    @property
    def place(self) -> str:
        """The same, of whatever tag."""
        return f"oci://{self.registry}/{self.repository}"

    @property
    def pinned(self) -> str:
        """The digest, which can be no other one day; else empty."""
        return self.digest

    @property
    def name(self) -> str:
        """Name of the folder where none is given."""
        return self.repository.rpartition("/")[2]


Source = HubSource | S3Source | OciSource


def parse_source(text: str, revision: str | None) -> Source:
    """Raises ``FetchError``; ``revision`` is of a hub's repository, beside or instead of @."""
    scheme, _, rest = text.partition("://")
    if revision is not None and scheme != "hf":
        msg = f"--revision {revision!r} belongs to hf:// sources only; {_form_of(scheme)}"
        raise invalid(msg)
    match scheme:
        case "hf":
            return _hub(text, rest, revision)
        case "s3":
            return _s3(text, rest)
        case "oci":
            return _oci(text, rest)
        case _:
            msg = f"SOURCE {text!r} is not {_FORMS}"
            raise invalid(msg)


def is_held(wanted: Source, held: str, revision: str) -> bool:
    """Tell whether what was fetched from ``held``, at ``revision``, is what is wanted.

    A branch or tag that was fetched is the commit or digest that it was then, too.
    """
    if held == wanted.text:
        return True
    is_revision = wanted.pinned != "" and wanted.pinned == revision
    return is_revision and parse_source(held, None).place == wanted.place


def folder_name(source: Source, given: str | None) -> str:
    """Name of the model's folder; raises ``FetchError`` for one that is no plain name."""
    name = source.name if given is None else given
    if not _FOLDER.fullmatch(name):
        msg = (
            f"{name!r} cannot be the folder's name: letters, digits, '.', '_' and '-' from a "
            "letter or digit on, 128 at most; give one with --name"
        )
        raise invalid(msg)
    return name


def invalid(message: str) -> FetchError:
    """An error of what was asked for."""
    return FetchError(message, reason=FetchReason.INVALID_SOURCE)


def _form_of(scheme: str) -> str:
    if scheme == "oci":
        return "put a tag or a digest behind the name"
    return "leave it out"


def _hub(text: str, rest: str, revision: str | None) -> HubSource:
    repository, at, stated = rest.partition("@")
    if at and revision is not None and stated != revision:
        msg = f"SOURCE {text!r} and --revision {revision!r} differ; give one of them"
        raise invalid(msg)
    wanted = revision if revision is not None else (stated if at else DEFAULT_REVISION)
    if not _HUB_REPOSITORY.fullmatch(repository) or ".." in repository:
        msg = f"SOURCE {text!r} names no repository; write hf://ORG/NAME[@REVISION]"
        raise invalid(msg)
    if not _HUB_REVISION.fullmatch(wanted) or ".." in wanted:
        msg = f"revision {wanted!r} is no branch, tag or commit; give one, as in @main"
        raise invalid(msg)
    return HubSource(repository=repository, revision=wanted)


def _s3(text: str, rest: str) -> S3Source:
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        msg = f"SOURCE {text!r} names no bucket; write s3://BUCKET/PREFIX"
        raise invalid(msg)
    if not _PREFIX.fullmatch(prefix) or {".", "..", ""} & set(prefix.split("/") if prefix else ()):
        msg = f"SOURCE {text!r} has no prefix of plain names; write s3://BUCKET/A/B"
        raise invalid(msg)
    return S3Source(bucket=bucket, prefix=prefix)


def _oci(text: str, rest: str) -> OciSource:
    match = _OCI.fullmatch(rest)
    if match is None or not (match["tag"] or match["digest"]):
        msg = f"SOURCE {text!r} is no image; write oci://REGISTRY/NAME:TAG[@sha256:HEX]"
        raise invalid(msg)
    return OciSource(
        registry=match["registry"],
        repository=match["repository"],
        tag=match["tag"] or "",
        digest=match["digest"] or "",
    )
