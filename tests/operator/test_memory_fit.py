"""The sizes that the Job tells hold pods back that would not fit; a revision notes them."""

from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, FakeCluster
from tests.operator.fake_jobs import JOB, end_fetch
from tests.operator.fake_operator import (
    DEFAULTS,
    NAMESPACE,
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    service_ref,
)
from tests.operator.planner.model_facts import LLAMA8B
from tests.operator.spec.rule_examples import patched

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.render import labels
from mizzen_operator.store import CONTROLLER_REVISION, SERVICE_KIND, ObjectRef

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DONE = {"reason": "Done", "message": "all there", "resolvedRevision": COMMIT, "bytes": 1024}
WITH_FACTS = {**DONE, "facts": LLAMA8B}
SMALL: dict[str, Any] = {"countPerNode": 1, "class": "nvidia-l4"}
LARGE: dict[str, Any] = {"countPerNode": 1, "class": "nvidia-h100-80gb"}
MUCH = {"kvTokens": 131_072}


def fetched(gpu: dict[str, Any], **spec: Any) -> dict[str, Any]:
    model = {
        "source": {"huggingFace": {"repository": "org/model"}},
        "cache": {"size": "20Gi", "storageClassName": "nfs"},
    }
    return service_manifest(**patched({"model": model, "worker": {"gpu": gpu}}, spec))


def begun(gpu: dict[str, Any], done: dict[str, Any], **spec: Any) -> FakeOperator:
    """An operator at rest whose weights are there."""
    operator = FakeOperator(FakeCluster(), Clock())
    operator.cluster.put(SERVICE_KIND, fetched(gpu, **spec))
    converge(operator)
    end_fetch(operator.cluster, **done)
    converge(operator)
    return operator


def change(operator: FakeOperator, gpu: dict[str, Any], **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, fetched(gpu, **spec))
    converge(operator)


def state(cluster: FakeCluster, kind: str) -> tuple[str, str]:
    found = condition(cluster, kind)
    return found["status"], found["reason"]


def has_fits(cluster: FakeCluster) -> bool:
    conditions = cluster.find(service_ref())["status"]["conditions"]
    return "Fits" in [item["type"] for item in conditions]


def names(cluster: FakeCluster, kind: Any) -> set[str]:
    return {ref.name for ref in cluster.refs(kind)}


def notes(cluster: FakeCluster) -> list[str]:
    """What stored revisions have noted of fetched weights; at least one has."""
    annotations = [
        item["metadata"].get("annotations", {}) for item in cluster.objects(CONTROLLER_REVISION)
    ]
    noted = [found[labels.FETCHED] for found in annotations if labels.FETCHED in found]
    assert noted
    return noted


@pytest.mark.parametrize("topology", ["Split", "Unified"])
def test_no_pod_is_made_that_would_not_fit(topology: str) -> None:
    operator = begun(SMALL, WITH_FACTS, topology=topology, engine=MUCH)
    cluster = operator.cluster
    assert names(cluster, STATEFULSET) == names(cluster, DEPLOYMENT) == set()
    assert state(cluster, "ModelReady") == ("True", "Fetched")
    lacks = ("False", "InsufficientMemory")
    assert state(cluster, "Fits") == state(cluster, "Ready") == lacks
    assert state(cluster, "Available") == state(cluster, "Progressing") == lacks
    assert state(cluster, "Placed") == ("True", "NothingToPlace")
    message = condition(cluster, "Ready")["message"]
    assert message == condition(cluster, "Fits")["message"]
    assert message.startswith("weights 14.96 GiB + CUDA 0.60 GiB")
    assert "> 20.24 GiB (0.9 of the 22.49 GiB of nvidia-l4); lower spec.engine.kvTokens" in message
    assert "InsufficientMemory" in [item["reason"] for item in cluster.objects(EVENT)]
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert cluster.writes[num_writes:] == []


def test_what_the_message_proposes_makes_it_go_on() -> None:
    operator = begun(SMALL, WITH_FACTS, engine=MUCH)
    change(operator, SMALL, engine={"kvTokens": 16_704})
    assert state(operator.cluster, "Fits") == ("True", "EnoughMemory")
    assert state(operator.cluster, "Ready")[0] == "True"
    assert len(names(operator.cluster, STATEFULSET)) == 1


def test_a_larger_gpu_makes_it_go_on_with_the_same_revision() -> None:
    operator = begun(SMALL, WITH_FACTS, engine=MUCH)
    before = operator.cluster.find(service_ref())["status"]["updateRevision"]
    change(operator, LARGE, engine=MUCH)
    status = operator.cluster.find(service_ref())["status"]
    assert status["updateRevision"] == before
    assert state(operator.cluster, "Ready")[0] == "True"


def test_an_older_revision_serves_on() -> None:
    operator = begun(LARGE, WITH_FACTS, replicas=2, engine={"kvTokens": 4096})
    cluster = operator.cluster
    old = names(cluster, STATEFULSET) | names(cluster, DEPLOYMENT)
    assert len(old) == 3
    change(operator, LARGE, replicas=2, engine={"kvTokens": 4_000_000, "contextLength": 4096})
    assert names(cluster, STATEFULSET) | names(cluster, DEPLOYMENT) == old
    assert state(cluster, "Available")[0] == "True"
    assert state(cluster, "Ready") == ("False", "InsufficientMemory")
    assert state(cluster, "Progressing") == ("False", "InsufficientMemory")
    change(operator, LARGE, replicas=2, engine={"kvTokens": 4096})
    assert names(cluster, STATEFULSET) | names(cluster, DEPLOYMENT) == old
    assert state(cluster, "Ready")[0] == "True"


def test_groups_that_run_stay_and_no_more_are_made() -> None:
    operator = begun(LARGE, WITH_FACTS, replicas=2, engine=MUCH)
    cluster = operator.cluster
    running = names(cluster, STATEFULSET)
    change(operator, SMALL, replicas=3, engine=MUCH)
    assert names(cluster, STATEFULSET) == running
    assert state(cluster, "Available")[0] == "True"
    change(operator, SMALL, replicas=1, engine=MUCH)
    assert len(names(cluster, STATEFULSET)) == 1


def test_tokenizers_of_groups_that_run_are_made_again() -> None:
    operator = begun(LARGE, WITH_FACTS, engine=MUCH)
    cluster = operator.cluster
    change(operator, SMALL, engine=MUCH)
    (ref,) = cluster.refs(DEPLOYMENT)
    cluster.remove(ref)
    converge(operator)
    assert cluster.refs(DEPLOYMENT) == [ref]
    assert state(cluster, "Fits") == ("False", "InsufficientMemory")
    assert state(cluster, "Available")[0] == "True"


def test_before_the_weights_are_there_it_is_not_known() -> None:
    operator = FakeOperator(FakeCluster(), Clock())
    operator.cluster.put(SERVICE_KIND, fetched(SMALL))
    converge(operator)
    assert state(operator.cluster, "Fits") == ("Unknown", "SizesNotKnown")
    assert state(operator.cluster, "Ready") == ("False", "Downloading")
    message = condition(operator.cluster, "Fits")["message"]
    assert message.startswith("not known: the model's sizes are told when its weights are fetched")


def test_a_job_that_tells_no_sizes_holds_nothing_up() -> None:
    cluster = begun(SMALL, DONE, engine=MUCH).cluster
    assert state(cluster, "Fits") == ("Unknown", "SizesNotKnown")
    assert state(cluster, "Ready")[0] == "True"


def test_a_claim_of_the_user_holds_nothing_up() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest(worker={"gpu": SMALL}, engine=MUCH))
    converge(FakeOperator(cluster, Clock()))
    assert state(cluster, "Fits") == ("Unknown", "SizesNotKnown")
    assert (
        "nobody told the sizes of the model on claim weights"
        in (condition(cluster, "Fits")["message"])
    )
    assert state(cluster, "Ready")[0] == "True"


def test_without_stated_memory_there_is_no_condition() -> None:
    cluster = begun({"countPerNode": 1}, WITH_FACTS, engine=MUCH).cluster
    assert not has_fits(cluster)
    assert state(cluster, "Ready")[0] == "True"


def test_a_pods_limit_is_what_counts_on_the_cpu() -> None:
    limited = {"worker": {"resources": {"limits": {"memory": "8Gi"}}}}
    cluster = begun({}, WITH_FACTS, **limited).cluster
    assert state(cluster, "Fits") == ("False", "InsufficientMemory")
    assert names(cluster, STATEFULSET) == set()
    cluster = begun({}, DONE, **limited).cluster
    assert not has_fits(cluster)
    assert state(cluster, "Ready")[0] == "True"


def test_an_unknown_class_is_told_and_holds_nothing_up() -> None:
    unheard = {"countPerNode": 1, "class": "unheard"}
    operator = begun(unheard, WITH_FACTS, engine=MUCH)
    assert state(operator.cluster, "Fits") == ("Unknown", "UnknownGpuClass")
    assert state(operator.cluster, "Ready")[0] == "True"


def test_sizes_are_noted_and_outlive_job_and_operator() -> None:
    operator = begun(LARGE, WITH_FACTS, engine={"kvTokens": 4096})
    cluster = operator.cluster
    (job,) = names(cluster, JOB)
    cluster.remove(ObjectRef(kind=JOB, namespace=NAMESPACE, name=job))
    operator.die()
    operator = FakeOperator(cluster, operator.clock, DEFAULTS)
    converge(operator)
    assert all('"numLayers": 32' in text for text in notes(cluster))
    change(operator, LARGE, engine={"kvTokens": 4_000_000})
    assert state(cluster, "Fits") == ("False", "InsufficientMemory")


def test_a_note_of_an_earlier_release_stays_as_it_is() -> None:
    cluster = begun(LARGE, DONE).cluster
    assert all("facts" not in text for text in notes(cluster))
