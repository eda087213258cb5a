"""What holds up a pod: one reason for one cause, whatever the kubelet calls it now."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.operator.planner.world import foreign, ready_pod

from mizzen_operator.observed import PodFacts
from mizzen_operator.status.holdups import describe, hold_up_of, is_broken, told_by_kubelet

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
POD = ready_pod(foreign("p-0", "Pod", "owner"))
LAME = replace(POD, is_ready=False)
NOT_FOUND = 'failed to pull and unpack image "w:1": not found'


def waits(reason: str, message: str = "", **facts: Any) -> PodFacts:
    return replace(LAME, waiting_reason=reason, waiting_message=message, **facts)


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        (replace(LAME, node_name="", unschedulable_message="0/4"), "Unschedulable", "a node: 0/4"),
        (replace(LAME, node_name=""), "Scheduling", "the scheduler has not answered"),
        (waits("ContainerCreating"), "ContainerCreating", "its volumes and its image"),
        (waits("ImagePullBackOff", NOT_FOUND), "ImagePullBackOff", "not found"),
        (waits("CrashLoopBackOff", "back-off 40s"), "CrashLoopBackOff", "back-off 40s"),
        (replace(LAME, last_exit="Error, exit code 1"), "RestartingContainer", "exit code 1"),
        (replace(LAME, started_at=NOW), "StartupProbe", "its startup probe"),
        (replace(LAME, started_at=NOW, has_started=True), "ReadinessProbe", "readiness probe"),
        (replace(LAME, started_at=NOW, restarts=3), "RestartingContainer", "its 3 restarts"),
        (replace(LAME, phase="Failed"), "Ended", "its replacement"),
        (replace(POD, child=replace(POD.child, deleting=True)), "Draining", "its end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_row_16_each_state_of_a_pod_has_its_reason(pod: PodFacts, reason: str, words: str) -> None:
    held = hold_up_of(pod)
    assert held is not None
    assert (held.reason, words in held.text) == (reason, True)


def test_a_ready_pod_waits_for_nothing() -> None:
    assert hold_up_of(POD) is None


def test_a_kubelet_that_alternates_tells_one_thing() -> None:
    tries = waits("ErrImagePull", NOT_FOUND)
    backs_off = waits(
        "ImagePullBackOff", f'Back-off pulling image "w:1": ErrImagePull: {NOT_FOUND}'
    )
    assert told_by_kubelet(tries) == told_by_kubelet(backs_off) == ("ImagePullBackOff", NOT_FOUND)
    assert describe(tries) == describe(backs_off)


def test_whose_container_it_is_is_not_told_twice() -> None:
    message = "back-off 40s restarting failed container=mizzen pod=p-0_team(c56c-4a1b)"
    assert told_by_kubelet(waits("CrashLoopBackOff", message)) == (
        "CrashLoopBackOff",
        "back-off 40s",
    )


def test_an_older_kubelet_says_less_while_it_waits() -> None:
    text = 'Back-off pulling image "w:1"'
    assert told_by_kubelet(waits("ImagePullBackOff", text)) == ("ImagePullBackOff", text)


@pytest.mark.parametrize(
    "message", ['secret "chat-keys" not found', "couldn't find key token in Secret team/chat-keys"]
)
def test_row_17_a_missing_secret_is_told_from_other_faults_of_configuration(message: str) -> None:
    pod = waits("CreateContainerConfigError", message)
    assert told_by_kubelet(pod) == ("SecretMissing", message)
    assert is_broken(pod)


def test_another_fault_of_configuration_keeps_the_kubelets_name() -> None:
    message = 'configmap "x" not found'
    pod = waits("CreateContainerConfigError", message)
    assert told_by_kubelet(pod) == ("CreateContainerConfigError", message)
    assert is_broken(pod)


def test_a_pod_on_its_way_needs_nobody() -> None:
    assert not any(map(is_broken, (POD, LAME, waits("ContainerCreating"), waits("Unheard"))))
