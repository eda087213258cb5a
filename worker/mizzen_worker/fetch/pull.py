"""Owns the whole way from a source to a model's folder that is complete, or is not there.

Invariants: ``DIR/<name>`` appears by one rename, with its manifest, when every file is on disk and
is what the source states; until then all is in ``DIR/.partial/<name>``, and any moment is a good
one to be killed at. One process at a time fills a folder.
"""

import contextlib
import fcntl
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mizzen_worker.contracts.errors import FetchError, ModelLoadError, SourceChangedError
from mizzen_worker.contracts.fetch import (
    MANIFEST_FILE,
    PARTIAL_FOLDER,
    STATE_FOLDER,
    FetchReason,
)
from mizzen_worker.fetch.backend import Backend
from mizzen_worker.fetch.disk import disk_errors, free_bytes, sync_file, sync_folder, write_whole
from mizzen_worker.fetch.http_client import HttpClient
from mizzen_worker.fetch.listing import PART_SUFFIX, Listing, RemoteFile
from mizzen_worker.fetch.manifest import Manifest, ManifestFile, ShapeFacts, encode_manifest
from mizzen_worker.fetch.one_file import fetch_part
from mizzen_worker.fetch.part_file import PartFile
from mizzen_worker.fetch.progress import Progress
from mizzen_worker.fetch.retry import RetryPolicy, retry
from mizzen_worker.fetch.shape_facts import read_shape_facts
from mizzen_worker.fetch.source import Source, invalid, is_held
from mizzen_worker.fetch.state import FetchState
from mizzen_worker.fetch.stopping import Stopping
from mizzen_worker.fetch.unpack import choose_unpacked, unpack
from mizzen_worker.fetch.verify import read_manifest, require_sizes

SPARE_BYTES = 64 << 20
"""Left free for manifests, journals and the file system's own needs."""
_MAX_LISTINGS = 3
_logger = logging.getLogger(__name__)
_UNPACKED = f"{STATE_FOLDER}/unpacked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to fetch and where to."""

    source: Source
    allow: tuple[str, ...]
    to: Path
    name: str
    max_bytes: int | None
    num_threads: int
    policy: RetryPolicy

    @property
    def target(self) -> Path:
        """The model's folder."""
        return self.to / self.name

    @property
    def partial(self) -> Path:
        """The same while it is not whole."""
        return self.to / PARTIAL_FOLDER / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The effects of a fetch."""

    backend: Backend
    http: HttpClient
    progress: Progress
    stopping: Stopping


def find_whole(job: Job) -> Manifest | None:
    """What is there already, with the sizes it should have; None where nothing is.

    Raises ``FetchError`` where the folder is damaged or holds something else.
    """
    if not job.target.exists():
        return None
    manifest = read_manifest(job.target)
    if manifest is None:
        msg = f"{job.target}: is there and was not fetched; give another --name"
        raise invalid(msg)
    if not _is_wanted(job, manifest):
        patterns = f" --allow {' '.join(manifest.allow)}" if manifest.allow else ""
        msg = f"{job.target}: holds {manifest.source}{patterns}; give another --name, or remove it"
        raise invalid(msg)
    require_sizes(job.target, manifest)
    return manifest


def _is_wanted(job: Job, manifest: Manifest) -> bool:
    return manifest.allow == job.allow and is_held(
        job.source, manifest.source, manifest.resolved_revision
    )


def pull(job: Job, tools: Tools) -> Manifest:
    """Fetch what is missing and put it in place; raises ``FetchError``."""
    with disk_errors(job.to):
        (job.to / PARTIAL_FOLDER).mkdir(parents=True, exist_ok=True)
        with _alone(job):
            # Somebody may have been faster.
            return find_whole(job) or _pull(job, tools)


def _pull(job: Job, tools: Tools) -> Manifest:
    finished = read_manifest(job.partial)
    if finished is not None and _is_wanted(job, finished):
        return _put_in_place(job, finished)
    state = FetchState(job.partial)
    listing = state.open(job.source, job.allow)
    for _ in range(_MAX_LISTINGS):
        if listing is None:
            listing = retry(tools.backend.list_files, policy=job.policy, waiting=tools.stopping)
            state.keep(job.source.text, job.allow, listing)
        try:
            whole = _fetch_all(job, tools, state, listing)
        except SourceChangedError:
            listing = None
            continue
        return _complete(job, tools, listing, whole)
    message = f"{job.source.text}: changes while it is fetched; fetch it when nobody writes to it"
    raise FetchError(message, reason=FetchReason.VERIFY_FAILED)


def _fetch_all(
    job: Job, tools: Tools, state: FetchState, listing: Listing
) -> dict[str, ManifestFile]:
    tools.progress.expect(listing.total_bytes)
    _require_allowed(job, listing.total_bytes)
    whole = state.whole_files()
    for path, entry in whole.items():
        tools.progress.note_present(path, entry.size)
    missing = [file for file in listing.downloads if file.path not in whole]
    _require_space(job, missing)
    tools.progress.enter("fetching")
    tools.stopping.begin()

    def fetch(file: RemoteFile) -> ManifestFile:
        with disk_errors(job.partial / file.path):
            entry = _fetch_file(job, tools, state, file)
            state.note_whole(entry)
            return entry

    with ThreadPoolExecutor(job.num_threads, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(fetch, file) for file in missing]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            tools.stopping.fail()
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        raise min(failures, key=_rank)
    return whole | {entry.path: entry for entry in (future.result() for future in futures)}


def _rank(error: BaseException) -> int:
    """What tells most comes first: broken invariants, then lasting failures, then those of others.

    A thread that was asked to end says nothing new.
    """
    if not isinstance(error, FetchError):
        return 0
    return {FetchReason.INTERRUPTED: 3}.get(error.reason, 1 + (error.reason.exit_code != 1))


def _fetch_file(job: Job, tools: Tools, state: FetchState, file: RemoteFile) -> ManifestFile:
    tools.stopping.require_going_on()
    state.reopen(file)
    with contextlib.closing(PartFile(job.partial, file)) as part:
        furthest = part.offset
        tools.progress.note_present(file.path, part.offset)

        def received(num_bytes: int) -> None:
            nonlocal furthest
            tools.stopping.require_going_on()
            tools.progress.add_received(num_bytes)
            tools.progress.note_present(file.path, part.offset)
            furthest = max(furthest, part.offset)

        retry(
            lambda: fetch_part(
                file, part, backend=tools.backend, http=tools.http, received=received
            ),
            policy=job.policy,
            waiting=tools.stopping,
            progress=lambda: furthest,
        )
        tools.progress.note_present(file.path, part.offset)
        return ManifestFile(path=file.path, size=file.size, sha256=part.finish())


def _require_allowed(job: Job, num_bytes: int) -> None:
    if job.max_bytes is not None and num_bytes > job.max_bytes:
        message = (
            f"{job.source.text}: has {num_bytes} bytes to fetch, --max-bytes allows "
            f"{job.max_bytes}; raise it, or take less with --allow"
        )
        raise FetchError(message, reason=FetchReason.NO_SPACE)


def _require_space(job: Job, missing: list[RemoteFile]) -> None:
    """Raise ``FetchError`` where it cannot fit, rather than after hours."""
    needed = sum(file.size for file in missing) - _part_bytes(job, missing)
    free = free_bytes(job.to)
    if needed > 0 and needed + SPARE_BYTES > free:
        message = (
            f"{job.to}: has {free} bytes free, {needed} are still to be fetched and {SPARE_BYTES} "
            "stay free; give the volume more space, or take less with --allow"
        )
        raise FetchError(message, reason=FetchReason.NO_SPACE)


def _part_bytes(job: Job, missing: list[RemoteFile]) -> int:
    paths = (job.partial / file.path for file in missing)
    parts = (
        path.with_name(f"{path.name}{suffix}") for path in paths for suffix in ("", PART_SUFFIX)
    )
    return sum(part.stat().st_size for part in parts if part.is_file())


def _complete(job: Job, tools: Tools, listing: Listing, whole: dict[str, ManifestFile]) -> Manifest:
    files = [whole[file.path] for file in listing.files]
    if listing.archives:
        tools.progress.enter("unpacking")
        files = _unpack(job, tools, listing, whole)
    manifest = Manifest(
        source=job.source.text,
        allow=job.allow,
        resolved_revision=listing.revision,
        files=tuple(sorted(files, key=lambda file: file.path)),
        total_bytes=sum(file.size for file in files),
        facts=_facts(job.partial),
    )
    place = job.partial / STATE_FOLDER
    write_whole(place / MANIFEST_FILE, encode_manifest(manifest))
    return _put_in_place(job, manifest)


def _facts(folder: Path) -> ShapeFacts | None:
    """None for models that the engine does not know: it says itself what is wrong with them."""
    try:
        return read_shape_facts(folder)
    except ModelLoadError as error:
        _logger.warning("sizes of the model are not known", extra={"error": str(error)})
        return None


def _unpack(
    job: Job, tools: Tools, listing: Listing, whole: dict[str, ManifestFile]
) -> list[ManifestFile]:
    """Put the files of layers beside those that are layers themselves.

    Begins anew where it was interrupted: layers stay until the manifest is written.
    """
    into = job.partial / _UNPACKED
    beside_bytes = sum(file.size for file in listing.files)
    allowed = free_bytes(job.to) - SPARE_BYTES
    if job.max_bytes is not None:
        allowed = min(allowed, job.max_bytes - beside_bytes)
    entry_by_path, links = unpack(
        listing.archives,
        job.partial,
        into,
        max_bytes=allowed,
        stop_if_asked=tools.stopping.require_going_on,
    )
    beside = [file.path for file in listing.files]
    place_by_path, kept = choose_unpacked(list(entry_by_path), links, beside, job.allow)
    files = [whole[path] for path in sorted(kept)]
    for path, place in place_by_path.items():
        target = job.partial / place
        target.parent.mkdir(parents=True, exist_ok=True)
        (into / path).replace(target)
        sync_file(target)
        files.append(msgspec.structs.replace(entry_by_path[path], path=place))
    return files


def _put_in_place(job: Job, manifest: Manifest) -> Manifest:
    """Remove what is not part of it, and rename."""
    place = job.partial / STATE_FOLDER
    for entry in place.iterdir():
        if entry.name == MANIFEST_FILE:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    kept = {job.partial / file.path for file in manifest.files} | {place / MANIFEST_FILE}
    for path in sorted(job.partial.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
            else:
                sync_folder(path)
        elif path not in kept:
            path.unlink()
    sync_folder(job.partial)
    job.partial.rename(job.target)
    sync_folder(job.to)
    require_sizes(job.target, manifest)
    return manifest


@contextlib.contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Keep a second process out; the system lets go when this one ends, however it does."""
    with (job.to / PARTIAL_FOLDER / f".{job.name}.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{job.target}: another process fetches it now"
            raise FetchError(message, reason=FetchReason.UNREACHABLE) from error
        yield
