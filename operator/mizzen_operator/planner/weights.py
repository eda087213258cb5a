"""Owns how far the fetched weights of the wanted revision are, from claim, Job and pods.

Does not own which of these objects are wanted (``weights_objects``) nor what waits for the weights
(``plan``). Pure.

Invariants: weights are ready when a Job completed on the live claim, or a stored revision notes
that one did; a revision that was fetched once is fetched again, if its claim is lost, as what it
was then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mizzen_operator.observed import JobFacts, Observed, OwnClaimFacts, PodFacts
from mizzen_operator.planner.fetch_report import FetchReport, WeightsReason, last_report
from mizzen_operator.planner.history import StoredRevision
from mizzen_operator.render import labels
from mizzen_operator.render.history import FetchedWeights, fetched_weights_of
from mizzen_operator.render.names import weights_name
from mizzen_operator.render.weights import fetch_job_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.weights import Fetched, source_url

_ENDED = ("Succeeded", "Failed")
_CONFIG_ERROR = "CreateContainerConfigError"


class WeightsPhase(StrEnum):
    """How far the weights are."""

    MISSING = "Missing"
    """Nothing fetches them now."""
    DOWNLOADING = "Downloading"
    READY = "Ready"
    FAILED = "Failed"
    """Nobody tries again before a person does something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsState:
    """How far the weights of the wanted revision are."""

    phase: WeightsPhase
    source: str
    """Address of the source, for people."""
    claim: str
    """Name of the claim."""
    reason: WeightsReason | None = None
    """None when ready."""
    message: str = ""
    fetched: FetchedWeights | None = None
    """What is on the claim; None until it is whole."""

    @property
    def is_ready(self) -> bool:
        return self.phase is WeightsPhase.READY

    @property
    def waits_for(self) -> str:
        """What keeps pods that need the weights away; empty when nothing does."""
        return "" if self.reason is None else f"waiting for the weights ({self.reason.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything about the claim that the wanted revision needs."""

    name: str
    source: str
    claim: OwnClaimFacts | None
    jobs: tuple[JobFacts, ...]
    """All of this claim, the ones that are going too."""
    pods: tuple[PodFacts, ...]
    pin: FetchedWeights | None
    """What was fetched for this claim, onto the live one or one that is lost."""
    pinned: str
    """Revision that was fetched before onto a claim that is lost; empty: what the spec says."""
    job_name: str
    """Of the Job that fetches what is wanted."""

    @property
    def job(self) -> JobFacts | None:
        return next((job for job in self.jobs if job.child.name == self.job_name), None)


def seen_of(
    resolved: Resolved, observed: Observed, history: Sequence[StoredRevision], source: Fetched
) -> Seen:
    """All that there is of the claim."""
    name = weights_name(resolved)
    claims = (item for item in observed.own_claims if item.child.name == name)
    claim = next((item for item in claims if _is_ours(observed, item)), None)
    pin = _pin(name, claim, history)
    is_lost = pin is not None and (claim is None or claim.child.uid != pin.claim_uid)
    pinned = pin.revision if pin is not None and is_lost else ""
    return Seen(
        name=name,
        source=source_url(source),
        claim=claim,
        jobs=tuple(
            job
            for job in observed.jobs
            if observed.owns(job.child) and job.child.labels.get(labels.WEIGHTS) == name
        ),
        pods=tuple(pod for pod in observed.pods if pod.child.labels.get(labels.WEIGHTS) == name),
        pin=pin,
        pinned=pinned,
        job_name=fetch_job_name(resolved, pinned),
    )


def _is_ours(observed: Observed, item: OwnClaimFacts) -> bool:
    retained_for = item.child.annotations.get(labels.RETAINED_FOR)
    return observed.owns(item.child) or (
        not item.child.owner_uid and retained_for == observed.service.uid
    )


def _pin(
    name: str, claim: OwnClaimFacts | None, history: Sequence[StoredRevision]
) -> FetchedWeights | None:
    """What was fetched for the claim: onto the live one, else the last that is known."""
    notes = [fetched_weights_of(item.child.annotations) for item in history]
    found = [note for note in notes if note is not None and note.claim == name]
    live = (note for note in found if claim is not None and note.claim_uid == claim.child.uid)
    return next(live, found[0] if found else None)


def state_of(resolved: Resolved, seen: Seen) -> WeightsState:
    """How far they are."""
    claim, pin, job = seen.claim, seen.pin, seen.job
    if claim is None or claim.child.deleting or claim.claim.phase == "Lost":
        return _without_claim(seen, claim)
    if pin is not None and pin.claim_uid == claim.child.uid:
        return _ready(seen, pin)
    done = next((item for item in seen.jobs if item.is_complete), None)
    if done is not None:
        return _completed(seen, done, claim.child.uid)
    if resolved.spec.stopped:
        message = "spec.stopped is true: weights are fetched when it is false"
        return _of(seen, WeightsPhase.MISSING, WeightsReason.STOPPED, message)
    return _given_up(seen, job) if job and job.is_failed else _downloading(seen, claim, job)


def _without_claim(seen: Seen, claim: OwnClaimFacts | None) -> WeightsState:
    phase, reason = WeightsPhase.MISSING, WeightsReason.VOLUME_PENDING
    if claim is None:
        return _of(seen, phase, reason, f"claim {seen.name} is not there yet")
    if claim.child.deleting:
        message = f"claim {seen.name} is being deleted; it goes when no pod mounts it any more"
        return _of(seen, phase, reason, message)
    message = f"claim {seen.name} has lost its volume; delete the claim to have them fetched anew"
    return _failed(seen, reason, message)


def _completed(seen: Seen, job: JobFacts, claim_uid: str) -> WeightsState:
    report = last_report(seen.pods, job, phase="Succeeded")
    revision = report.revision if report else ""
    if seen.pin is not None and revision and seen.pin.revision not in ("", revision):
        return _failed(
            seen,
            WeightsReason.SOURCE_CHANGED,
            f"{seen.source} is {revision} now and was {seen.pin.revision} when this revision of the"
            " service began; set spec.model.cache.refresh to take what is there now",
        )
    return _ready(
        seen,
        FetchedWeights(
            claim=seen.name,
            claim_uid=claim_uid,
            revision=revision,
            size_bytes=report.size_bytes if report else 0,
            facts=report.facts if report else None,
        ),
    )


def _given_up(seen: Seen, job: JobFacts) -> WeightsState:
    report = last_report(seen.pods, job, phase="Failed")
    reason = (report and report.reason) or WeightsReason.DOWNLOAD_FAILED
    why = report.sentence if report and report.sentence else job.failure
    again = f"mend it and delete Job {job.child.name} to try again, or change the spec"
    return _failed(seen, reason, f"{seen.source}: {why}; {again}")


def _downloading(seen: Seen, claim: OwnClaimFacts, job: JobFacts | None) -> WeightsState:
    uid = job.child.uid if job is not None else ""
    pod = next((item for item in living_writers(seen) if item.child.owner_uid == uid), None)
    phase = WeightsPhase.DOWNLOADING
    if pod is not None and pod.waiting_reason == _CONFIG_ERROR:
        message = f"pod {pod.child.name}: {pod.waiting_message}"
        return _of(seen, phase, WeightsReason.SECRET_MISSING, message)
    if claim.claim.phase != "Bound" and (pod is None or not pod.node_name):
        of_class = f"of storage class {claim.claim.storage_class or 'none (no default)'}"
        look = f"kubectl describe pvc {seen.name} says why"
        message = f"claim {seen.name} {of_class} is {claim.claim.phase}; {look}"
        return _of(seen, phase, WeightsReason.VOLUME_PENDING, message)
    report = last_report(seen.pods, job, phase="Failed") if job is not None else None
    text = f"fetching {seen.source} onto claim {seen.name}"
    if pod is not None and pod.child.deleting:
        # Two pods must not write to one claim: a node that is lost holds up the next attempt.
        text = f"{text}; pod {pod.child.name} on node {pod.node_name} has to end first"
    elif pod is not None and pod.waiting_reason:
        text = f"{text}; pod {pod.child.name} waits: {pod.waiting_reason}"
    if job is not None and job.num_failed:
        text = f"{text}, attempt {job.num_failed + 1}{_how_it_failed(report)}"
    # While the next pod runs it may be better; between two pods the last word stands.
    last_word = report.reason if report is not None and pod is None else None
    return _of(seen, phase, last_word or WeightsReason.DOWNLOADING, text)


def _how_it_failed(report: FetchReport | None) -> str:
    if report is None:
        return ""
    so_far = f" with {report.size_bytes} bytes fetched" if report.size_bytes else ""
    return f"; the last one ended{so_far}: {report.sentence}"


def living_writers(seen: Seen) -> list[PodFacts]:
    """Pods that may write to the claim now."""
    return [pod for pod in seen.pods if pod.phase not in _ENDED]


def _of(seen: Seen, phase: WeightsPhase, reason: WeightsReason, message: str) -> WeightsState:
    return WeightsState(
        phase=phase, source=seen.source, claim=seen.name, reason=reason, message=message
    )


def _failed(seen: Seen, reason: WeightsReason, message: str) -> WeightsState:
    return _of(seen, WeightsPhase.FAILED, reason, message)


def _ready(seen: Seen, fetched: FetchedWeights) -> WeightsState:
    return WeightsState(
        phase=WeightsPhase.READY, source=seen.source, claim=seen.name, fetched=fetched
    )
