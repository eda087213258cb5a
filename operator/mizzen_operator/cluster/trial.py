"""Owns asking the API server, in dry runs, whether it would take the pod templates of a service.

Does not own which templates there are nor what a refusal holds up (`planner/holds.py`).

A template is asked about in two objects: its owner, because policies may speak of StatefulSets, and
a Pod made from it, because an owner is accepted although LimitRange, ResourceQuota, pod security or
a webhook will refuse each of its pods. Only the second finds that before a roll-out has removed
what runs. It needs the right to create pods, which gives the operator no power that it lacks: who
may create StatefulSets can run any pod. Without that right (the chart's `dryRunPods: false`) only
owners are asked about. The pod's owner would not be asked by the same user; a policy that looks at
the user may therefore answer otherwise than it will.

A template that lives is asked about only while pods of it are missing: a quota may have been used
up since, or a policy come. StatefulSets tell that in Events alone, which are not read; a Deployment
tells it in its status, so it is not asked about.

State: the last answer per service and role, for one template's hash. An accepted hash is not asked
about again, a refused one after a growing delay and after each edit of the service, because the
owner is judged with more than its template: a policy may limit its replicas. Losing this memory
costs two dry runs for each role whose objects do not live yet.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mizzen_operator.cluster.client import ClusterClient, FieldManager, Precondition
from mizzen_operator.cluster.drift import applied_hash
from mizzen_operator.cluster.field_ownership import as_applied
from mizzen_operator.cluster.ownership import require_ours
from mizzen_operator.errors import (
    ClusterError,
    ConflictError,
    Objection,
    Problem,
    RefusedError,
    RejectedError,
    ThrottledError,
    objection_of,
    words_of,
)
from mizzen_operator.planner.holds import RoleTemplate, TemplateAnswers
from mizzen_operator.render.origin import template_problem
from mizzen_operator.render.trial_pod import trial_pod
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash
from mizzen_operator.store import (
    Manifest,
    ObjectRef,
    ServiceUid,
    StoredObject,
    ref_of,
)

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 10.0
MAX_RETRY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server said of one template."""

    template_hash: str
    generation: int
    """Of the service, when it was asked."""
    objection: RefusedError | None = None
    """None: accepted."""
    num_asked: int = 1
    asked_at_s: float

    @property
    def is_quota_full(self) -> bool:
        """Accepted but for the room in a quota."""
        return (
            self.objection is not None and objection_of(self.objection.said) is Objection.QUOTA_FULL
        )

    @property
    def ask_again_at_s(self) -> float | None:
        """When it is worth asking again; None for an accepted template."""
        return None if self.objection is None else self.asked_at_s + _delay_s(self.num_asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Pods are missing although their template lives."""

    template_hash: str
    said: str = ""
    """What the API server has against such pods; empty if nothing or not asked yet."""
    num_asked: int = 0
    asked_at_s: float
    """When it was first seen, if it was not asked about yet."""
    is_told_elsewhere: bool
    """The owner's own status says what is against its pods."""

    @property
    def ask_again_at_s(self) -> float | None:
        """When it is worth asking again; a controller has time to make pods first."""
        if self.is_told_elsewhere:
            return None
        return self.asked_at_s + _delay_s(max(self.num_asked, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The answers for all templates of a service."""

    answers: TemplateAnswers
    wait_s: float | None
    """When to ask again what was objected to."""
    failure: ClusterError | None
    """Why a template could not be asked about; the caller retries."""


class TemplateTrials:
    """Asks, and remembers the answers."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._answers: dict[ServiceUid, dict[str, Answer]] = {}
        self._shortages: dict[ServiceUid, dict[str, Shortage]] = {}

    async def ask(
        self,
        service: StoredObject,
        resolved: Resolved,
        templates: Iterable[RoleTemplate],
        *,
        known: Mapping[ObjectRef, StoredObject],
        short: Mapping[str, Manifest],
        may_ask: bool,
    ) -> TrialResult:
        """The answer for each template, from memory where it is known.

        Without `may_ask` what is not remembered counts as accepted, and nothing is asked.
        `known` are the service's live objects: a template that lives in one was accepted.
        `short` are the owners that have too few pods, by role.
        """
        seen = _Seen()
        for item in templates:
            try:
                if any(_lives(obj, known) for obj in item.objects):
                    owner = short.get(item.role)
                    seen.shortages[item.role] = await self._shortage(
                        service, item, owner, may_ask=may_ask
                    )
                    continue
                self._shortages.get(ServiceUid(service.uid), {}).pop(item.role, None)
                seen.answers[item.role] = await self._answer(
                    service,
                    item,
                    generation=resolved.generation,
                    known=known.get(ref_of(item.owner)),
                    may_ask=may_ask,
                )
            except ClusterError as error:
                seen.failure, seen.unanswered[item.role] = error, str(error)
                continue
            answer = seen.answers[item.role]
            if answer and answer.objection and not answer.is_quota_full:
                seen.problems[item.role] = template_problem(
                    resolved,
                    item.role,
                    item.template,
                    said=answer.objection.said,
                    paths=answer.objection.fields,
                )
        return TrialResult(
            answers=TemplateAnswers(
                refused=seen.problems, kept_out=seen.kept_out(), unanswered=seen.unanswered
            ),
            wait_s=self._wait_s(seen.moments()) if may_ask else None,
            failure=seen.failure,
        )

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone."""
        self._answers.pop(uid, None)
        self._shortages.pop(uid, None)

    def _wait_s(self, moments: Iterable[float]) -> float | None:
        waits = [moment - self._clock() for moment in moments]
        return max(0.0, min(waits)) if waits else None

    async def _shortage(
        self, service: StoredObject, item: RoleTemplate, owner: Manifest | None, *, may_ask: bool
    ) -> Shortage | None:
        """What is known of the missing pods of a living template; None if none are missing."""
        remembered = self._shortages.setdefault(ServiceUid(service.uid), {})
        if not may_ask:
            return remembered.get(item.role)
        answers = self._answers.get(ServiceUid(service.uid), {})
        last = answers.get(item.role)
        if last is not None and last.objection is not None:
            # It lives, so it was taken since.
            del answers[item.role]
        if owner is None:
            remembered.pop(item.role, None)
            return None
        now_s = self._clock()
        shortage = remembered.get(item.role)
        if shortage is None or shortage.template_hash != canonical_hash(owner["spec"]["template"]):
            shortage = _first_seen(owner, last, now_s)
        if shortage.ask_again_at_s is not None and now_s >= shortage.ask_again_at_s:
            shortage = replace(
                shortage,
                said=await self._said_of_pod(owner, before=shortage.said),
                num_asked=shortage.num_asked + 1,
                asked_at_s=now_s,
            )
        remembered[item.role] = shortage
        return shortage

    async def _said_of_pod(self, owner: Manifest, *, before: str) -> str:
        """What the API server has against a pod of a living owner; empty if nothing."""
        try:
            objection = await self._pod_objection(owner)
        except ThrottledError:
            return before
        except ClusterError as error:
            # Such as a webhook that does not answer: it stops the owner's controller as well.
            return str(error)
        return "" if objection is None else objection.said

    async def _answer(
        self,
        service: StoredObject,
        item: RoleTemplate,
        *,
        generation: int,
        known: StoredObject | None,
        may_ask: bool,
    ) -> Answer | None:
        """The remembered or a fresh answer; None where nothing is remembered nor may be asked."""
        remembered = self._answers.setdefault(ServiceUid(service.uid), {})
        last = remembered.get(item.role)
        template_hash = canonical_hash(item.template)
        if last is not None and last.template_hash != template_hash:
            last = None
        if not may_ask:
            return last
        if last is not None and last.objection is not None and last.generation != generation:
            last = None
        now_s = self._clock()
        if last is not None and (last.ask_again_at_s is None or now_s < last.ask_again_at_s):
            return last
        objection = await self._objection(service, item.owner, known)
        answer = Answer(
            template_hash=template_hash,
            generation=generation,
            objection=objection,
            num_asked=1 if last is None else last.num_asked + 1,
            asked_at_s=now_s,
        )
        remembered[item.role] = answer
        if objection is not None:
            logger.info(
                "the API server objects to the %s pods of %s: %s",
                item.role,
                service.ref,
                objection.said,
                extra={"service_uid": service.uid},
            )
        return answer

    async def _objection(
        self, service: StoredObject, owner: Manifest, known: StoredObject | None
    ) -> RefusedError | None:
        """What the API server has against the owner or its pods; a full quota weighs least."""
        try:
            await self._try_owner(service, owner, known)
        except RefusedError as error:
            kind = objection_of(error.said)
            if kind is Objection.NO_RIGHT:
                # Nor could it be applied: that is no fault of the template.
                raise
            if kind is Objection.TEMPLATE:
                return error
            full = error if kind is Objection.QUOTA_FULL else None
        else:
            full = None
        return await self._pod_objection(owner) or full

    async def _pod_objection(self, owner: Manifest) -> RefusedError | None:
        pod = trial_pod(owner)
        try:
            await self._try_create(ref_of(pod), pod)
        except RefusedError as error:
            kind = objection_of(error.said)
            if kind in (Objection.TEMPLATE, Objection.QUOTA_FULL):
                return error
            logger.info("nothing is known of the pods of %s: %s", owner["metadata"]["name"], error)
        return None

    async def _try_owner(
        self, service: StoredObject, owner: Manifest, known: StoredObject | None
    ) -> None:
        """Ask as the applier would write: a POST for a new object, an apply to a known UID."""
        ref = ref_of(owner)
        if known is None or known.is_being_deleted:
            await self._try_create(ref, owner)
            return
        require_ours(service, ref, known.manifest)
        try:
            await self._client.try_apply(ref, owner, Precondition(uid=known.uid))
        except RejectedError:
            manager = FieldManager.CONTROLLER
            if as_applied(known.managed_fields, manager=manager, with_others=True) is None:
                raise
            # What the first creation or somebody else left in the object may be what does not go
            # together with the template. The applier takes it back, so the template counts alone.
            await self._try_create(ref, owner)

    async def _try_create(self, ref: ObjectRef, manifest: Manifest) -> None:
        try:
            await self._client.try_create(ref, manifest)
        except ConflictError:
            # The name is looked at last, after validation and admission.
            logger.debug("%s exists already", ref)


@dataclass(slots=True)
class _Seen:
    """What one pass over the templates of a service finds, by role."""

    answers: dict[str, Answer | None] = field(default_factory=dict)
    shortages: dict[str, Shortage | None] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    failure: ClusterError | None = None

    def kept_out(self) -> dict[str, str]:
        """Why pods cannot be made now, of templates that are not refused."""
        full = {
            role: answer.objection.said
            for role, answer in self.answers.items()
            if answer and answer.objection and answer.is_quota_full
        }
        short = {role: item.said for role, item in self.shortages.items() if item and item.said}
        return {role: words_of(said) for role, said in {**full, **short}.items()}

    def moments(self) -> list[float]:
        """When there is something to ask again."""
        found = [
            *(answer.ask_again_at_s for answer in self.answers.values() if answer),
            *(item.ask_again_at_s for item in self.shortages.values() if item),
        ]
        return [moment for moment in found if moment is not None]


def _first_seen(owner: Manifest, last: Answer | None, now_s: float) -> Shortage:
    """The shortage as it begins: a quota that was full already is known to be its reason."""
    template_hash = canonical_hash(owner["spec"]["template"])
    is_told_elsewhere = owner["kind"] != "StatefulSet"
    if last is None or last.template_hash != template_hash or last.objection is None:
        return Shortage(
            template_hash=template_hash, asked_at_s=now_s, is_told_elsewhere=is_told_elsewhere
        )
    return Shortage(
        template_hash=template_hash,
        said=last.objection.said,
        num_asked=last.num_asked,
        asked_at_s=last.asked_at_s,
        is_told_elsewhere=is_told_elsewhere,
    )


def _delay_s(num_asked: int) -> float:
    return min(FIRST_RETRY_S * 2.0 ** min(num_asked - 1, 16), MAX_RETRY_S)


def _lives(rendered: Manifest, known: Mapping[ObjectRef, StoredObject]) -> bool:
    live = known.get(ref_of(rendered))
    return live is not None and applied_hash(live.manifest) == applied_hash(rendered)
