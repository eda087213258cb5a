"""Owns what a pod that fetches weights says at its end, and the reasons why weights are not there.

Does not own what follows from it (``weights``). Pure.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from mizzen_operator.observed import JobFacts, PodFacts
from mizzen_operator.spec.shape_facts import ShapeFacts, shape_facts_of

MAX_SENTENCE = 500


class WeightsReason(StrEnum):
    """Why weights are not ready; the values are reasons of the condition ModelReady."""

    VOLUME_PENDING = "VolumePending"
    DOWNLOADING = "Downloading"
    STOPPED = "Stopped"
    SECRET_MISSING = "SecretMissing"
    RATE_LIMITED = "RateLimited"
    UNREACHABLE = "Unreachable"
    NOT_FOUND = "NotFound"
    UNAUTHORIZED = "Unauthorized"
    VERIFY_FAILED = "VerifyFailed"
    NO_SPACE = "NoSpace"
    INVALID_SOURCE = "InvalidSource"
    SOURCE_CHANGED = "SourceChanged"
    DOWNLOAD_FAILED = "DownloadFailed"


TOLD_BY_JOB = frozenset(
    {
        WeightsReason.RATE_LIMITED,
        WeightsReason.UNREACHABLE,
        WeightsReason.NOT_FOUND,
        WeightsReason.UNAUTHORIZED,
        WeightsReason.VERIFY_FAILED,
        WeightsReason.NO_SPACE,
        WeightsReason.INVALID_SOURCE,
    }
)
"""Words that ``mizzen fetch-weights`` itself uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """What one pod said at its end."""

    reason: WeightsReason | None
    sentence: str
    revision: str
    size_bytes: int
    facts: ShapeFacts | None = None
    """Sizes of the model; None where it told none."""


def last_report(pods: Iterable[PodFacts], job: JobFacts, *, phase: str) -> FetchReport | None:
    ended = [
        pod
        for pod in pods
        if pod.phase == phase and pod.child.owner_uid == job.child.uid and pod.end_message
    ]
    newest = sorted(ended, key=lambda pod: (str(pod.child.created_at), pod.child.name))
    return report_of(newest[-1].end_message) if newest else None


def report_of(text: str) -> FetchReport:
    """The termination message; free text, such as the end of a log, is a sentence."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        lines = text.strip().splitlines() or [""]
        return FetchReport(
            reason=None, sentence=lines[-1][:MAX_SENTENCE], revision="", size_bytes=0
        )
    word, size = found.get("reason"), found.get("bytes")
    return FetchReport(
        reason=next((item for item in TOLD_BY_JOB if item.value == word), None),
        sentence=str(found.get("message") or "")[:MAX_SENTENCE].rstrip("."),
        revision=str(found.get("resolvedRevision") or ""),
        size_bytes=size if isinstance(size, int) else 0,
        facts=shape_facts_of(found.get("facts")),
    )
