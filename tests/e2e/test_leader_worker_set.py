"""What `mizzen plan --groups-as LeaderWorkerSet` prints, on a real API server with the definition
that its project published.

Its controller does not run here: no pod is made, so that is all that these tests vouch for.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster
from tests.devcluster.published import LEADER_WORKER_SETS
from tests.e2e.definitions import published_definitions
from tests.e2e.operator_process import apply
from tests.operator.lws_pods import pods_of

from mizzen_operator import cli
from mizzen_operator.cluster.drift import drifted_fields
from mizzen_operator.store import ref_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).resolve().parents[1] / "operator" / "golden_lws"
CASES = ("two-nodes", "one-node", "gpus")
Printed = Callable[[str], list[dict[str, Any]]]
STRICT = "?dryRun=All&fieldValidation=Strict"
ON_GPUS = {
    "topology": "Unified",
    "replicas": 3,
    "worker": {
        "gpu": {"countPerNode": 1},
        "rollout": {"maxSurge": "40%", "maxUnavailable": 0},
        "podTemplate": {
            "spec": {
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [{"name": "side", "image": "i"}],
            }
        },
    },
}


@pytest.fixture(scope="module")
def defined(cluster: Cluster) -> Iterator[Cluster]:
    with published_definitions(cluster, LEADER_WORKER_SETS):
        yield cluster


def inputs(case: str) -> dict[str, Any]:
    if case != "gpus":
        found = yaml.safe_load((GOLDEN / case / "input.yaml").read_text(encoding="utf-8"))
        return dict(found)
    model = {"source": {"pvc": {"claimName": "weights"}}}
    return {
        "apiVersion": "serving.mizzen.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {"model": model, **ON_GPUS},
    }


@pytest.fixture
def printed(namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Printed:
    """The objects of a case, in the test's namespace; the LeaderWorkerSet is the last one."""

    def of_case(case: str) -> list[dict[str, Any]]:
        body = inputs(case)
        body["metadata"]["namespace"] = namespace
        path = tmp_path / "service.yaml"
        path.write_text(yaml.safe_dump(body), encoding="utf-8")
        assert cli.plan_verb(["-f", str(path), "--groups-as", "LeaderWorkerSet"]) == 0
        found = [obj for obj in yaml.safe_load_all(capsys.readouterr().out) if obj]
        assert found[-1]["kind"] == "LeaderWorkerSet"
        return found

    return of_case


def path_of(obj: dict[str, Any], namespace: str) -> str:
    if obj["kind"] == "LeaderWorkerSet":
        return f"/apis/{obj['apiVersion']}/namespaces/{namespace}/leaderworkersets{STRICT}"
    return f"{ref_of(obj).kind.path(namespace=namespace)}{STRICT}"


@pytest.mark.parametrize("case", CASES)
def test_the_published_schema_takes_what_is_printed(
    defined: Cluster, namespace: str, printed: Printed, case: str
) -> None:
    for obj in printed(case):
        made = defined.api.call("POST", path_of(obj, namespace), obj)
        assert drifted_fields(obj, made) == frozenset(), obj["kind"]


@pytest.mark.parametrize("case", CASES)
def test_pods_of_the_template_are_taken_too(
    defined: Cluster, namespace: str, printed: Printed, case: str
) -> None:
    """The definition knows a pod template's fields; the API server's own rules are for pods."""
    objects = printed(case)
    apply(defined, namespace, next(obj for obj in objects if obj["kind"] == "ServiceAccount"))
    lws = objects[-1]
    template = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    for pod in pods_of(lws):
        body = deepcopy(template)
        body["metadata"] |= {"name": pod.name, "labels": dict(pod.labels)}
        body |= {"apiVersion": "v1", "kind": "Pod"}
        made = defined.api.call("POST", f"/api/v1/namespaces/{namespace}/pods{STRICT}", body)
        terms = made["spec"].get("affinity", {}).get("podAntiAffinity", {})
        assert len(terms) == (lws["spec"]["leaderWorkerTemplate"]["size"] > 1)


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ({"sizes": 2}, 400, "unknown field"),
        ({"restartPolicy": "Sometimes"}, 422, "Unsupported value"),
        ({"workerTemplate": None}, 422, "Required value"),
    ],
    ids=["unknown", "value", "missing"],
)
def test_the_schema_is_asked_indeed(
    defined: Cluster, printed: Printed, wrong: dict[str, Any], status: int, words: str
) -> None:
    lws = printed("one-node")[-1]
    lws["spec"]["leaderWorkerTemplate"] |= wrong
    with pytest.raises(ApiError, match=words) as refused:
        defined.api.call("POST", path_of(lws, lws["metadata"]["namespace"]), lws)
    assert refused.value.status == status
