"""When a service is looked at again after a failure: after a back-off, or when more is due."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, Call
from tests.operator.fake_operator import (
    FakeOperator,
    condition,
    service_ref,
    started,
)

from mizzen_operator.attempts import Attempts
from mizzen_operator.errors import ClusterError, ForbiddenError, ThrottledError, UnavailableError
from mizzen_operator.metrics import Metrics
from mizzen_operator.store import CLAIM, OPTIONAL_KINDS, ObjectRef, ResourceKind, ServiceUid
from mizzen_operator.workqueue import WorkQueue

RULE = OPTIONAL_KINDS[2]
TIMER_S = 0.001
"""How late a timer fires."""


class Process:
    """The operator's own way from a reconcile to the queue, over a fake cluster and clock."""

    def __init__(self, fake: FakeOperator) -> None:
        self.fake = fake
        self.cluster, self.clock = fake.cluster, fake.clock
        self.queue: WorkQueue[ServiceUid] = WorkQueue(clock=self.clock, jitter=lambda: 0.0)
        self.attempts = Attempts(self.queue, fake.reconciler.reconcile, Metrics())

    def news(self) -> None:
        """What the watch brought is looked at."""
        for uid in self.fake.dirty:
            self.queue.add(uid)
        self.fake.dirty.clear()
        self._work()

    def pass_until(self, moment_s: float) -> None:
        """Let time pass, from one delay of the queue to the next; nothing else happens."""
        while (due_s := self.due_s()) is not None and due_s <= moment_s:
            self.clock.now_s = due_s + TIMER_S
            self._work()
        self.clock.now_s = moment_s

    def due_s(self) -> float | None:
        return self.queue._schedule.next_due_s()

    def fail_often(self) -> None:
        """As if there had been so many failures that the back-off is at its longest."""
        (uid,) = self.fake.store.service_uids()
        self.queue._num_failures[uid] = 20

    def _work(self) -> None:
        while (uid := self.queue._schedule.take(self.clock())) is not None:
            asyncio.run(self.attempts.attempt(uid))
            self.queue._schedule.done(uid)


def refuse(
    kind: ResourceKind, error: ClusterError, verbs: tuple[str, ...]
) -> Callable[[Call], None]:
    def before(call: Call) -> None:
        if call.ref.kind == kind and call.verb in verbs:
            raise error

    return before


def refused_for_good(**spec: Any) -> Process:
    """A service that serves, and whose rules are refused again and again."""
    fake = started(observability={}, **spec)
    cluster = fake.cluster
    cluster.remove(cluster.refs(RULE)[0])
    cluster.before = refuse(RULE, ForbiddenError("by a policy"), ("create",))
    process = Process(fake)
    process.fail_often()
    fake.run_lists()
    process.news()
    assert process.due_s() == process.clock() + 300
    return process


def stop_serving(process: Process) -> None:
    """All pods of all groups are no longer ready."""
    for ref in process.cluster.refs(STATEFULSET):
        process.cluster.edit(ref, lambda manifest: manifest["status"].update(readyReplicas=0))


def num_ready_groups(process: Process) -> int:
    service = process.cluster.find(service_ref())
    assert service is not None
    return int(service["status"]["roles"]["worker"]["readyGroups"])


def test_a_status_that_came_too_soon_is_written_in_time_although_an_object_is_refused() -> None:
    process = refused_for_good()
    process.pass_until(process.clock() + 5)
    ref = process.cluster.refs(DEPLOYMENT)[0]
    process.cluster.edit(ref, lambda manifest: manifest["status"].update(readyReplicas=0))
    process.news()
    written_s = process.clock()
    process.pass_until(written_s + 0.25)
    stop_serving(process)
    process.news()
    assert num_ready_groups(process) == 1
    process.pass_until(written_s + 1.1)
    assert num_ready_groups(process) == 0
    assert condition(process.cluster, "Ready")["status"] == "False"
    # Nothing is left that is due: from now on there is the back-off alone.
    due_s = process.due_s()
    assert due_s is not None
    assert due_s > process.clock() + 200


def test_a_group_that_gets_late_is_looked_at_then_although_an_object_is_refused() -> None:
    process = refused_for_good(engine={"startupDeadlineSeconds": 2000})
    process.pass_until(1950)
    stop_serving(process)
    process.news()
    assert process.due_s() == 2000
    process.pass_until(2001)
    progressing = condition(process.cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")


def test_a_deadline_holds_also_where_a_failure_ends_the_pass() -> None:
    process = Process(started(engine={"startupDeadlineSeconds": 2000}))
    cluster = process.cluster
    process.fail_often()
    process.pass_until(1950)
    stop_serving(process)
    (ref,) = cluster.refs(DEPLOYMENT)
    cluster.edit(ref, lambda manifest: manifest["spec"].update(replicas=7))
    cluster.before = refuse(DEPLOYMENT, UnavailableError("away"), ("patch",))
    process.news()
    assert process.due_s() == 2000


def test_a_claim_that_is_not_bound_is_looked_at_again_although_an_object_is_refused() -> None:
    process = refused_for_good()
    claim = ObjectRef(kind=CLAIM, namespace="team", name="weights")
    process.cluster.edit(claim, lambda manifest: manifest["status"].update(phase="Pending"))
    process.pass_until(process.clock() + 5)
    stop_serving(process)
    process.news()
    assert process.due_s() == process.clock() + 15


def test_what_the_api_server_asks_for_is_waited_for_whatever_is_due() -> None:
    process = refused_for_good()
    process.cluster.before = refuse(RULE, ThrottledError("slowly", retry_after_s=20), ("create",))
    process.pass_until(process.clock() + 5)
    stop_serving(process)
    process.news()
    process.clock.now_s += 0.25
    for ref in process.cluster.refs(STATEFULSET):
        process.cluster.edit(ref, lambda manifest: manifest["status"].update(readyReplicas=1))
    process.news()
    assert process.due_s() == process.clock() + 20
