"""``mizzen status``, ``explain`` and ``support-bundle`` against a real API server, read-only."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devcluster.cluster import Cluster
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    num_unschedulable,
)
from tests.e2e.waiting import wait_for
from tests.operator.fake_operator import service_manifest

from mizzen_operator.support.verbs import explain_verb, status_verb, support_bundle_verb

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NUM_PODS = 3
"""Of a service as it is by default: one worker, two tokenizers."""


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """A running operator without our images."""
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path), log=tmp_path / "operator.log"
    )
    with process.running():
        yield process


def test_people_are_told_what_is_there(
    cluster: Cluster,
    namespace: str,
    operator: OperatorProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", namespace]
    manifest = service_manifest()
    del manifest["metadata"]["namespace"]
    apply(cluster, namespace, manifest)
    wait_for(
        "the operator says what is missing",
        lambda: condition(cluster, namespace, "chat", "Ready").get("reason") == "ClaimNotFound",
    )

    wait_for(
        "the scheduler has looked at every pod",
        lambda: num_unschedulable(cluster, namespace) == NUM_PODS,
    )

    assert status_verb([*where, "-o", "json"]) == 1
    (service,) = json.loads(capsys.readouterr().out)["services"]
    assert (service["name"], service["isReady"], service["notes"]) == ("chat", False, [])
    worker, tokenizer = service["roles"]
    assert (worker["desired"], worker["ready"], len(worker["groups"])) == (1, 0, 1)
    assert tokenizer["desired"] == 2
    (pod,) = worker["groups"][0]["pods"]
    assert pod["waitsFor"]["reason"] == "Unschedulable"

    assert status_verb([*where, "chat"]) == 1
    assert 'persistentvolumeclaim "weights" not found' in capsys.readouterr().out
    assert explain_verb([*where, "chat"]) == 1
    out = capsys.readouterr().out
    assert f"pod {pod['name']} waits for a node: " in out
    assert "to mend ClaimNotFound: create the claim" in out

    file = tmp_path / "bundle.tar.gz"
    assert support_bundle_verb([*where, "-o", str(file)]) == 0
    with tarfile.open(file) as archive:
        names = archive.getnames()
        assert f"bundle/services/{namespace}/chat/objects.json" in names
        for member in archive.getmembers():
            data = archive.extractfile(member)
            assert data is not None
            assert b'"kind": "Secret"' not in data.read()
    assert "wrote" in capsys.readouterr().err

    assert explain_verb([*where, "nobody"]) == 2
    assert "there are chat" in capsys.readouterr().err
