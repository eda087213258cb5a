"""``mizzen prove-upgrade`` over dumps: of this release, and of every one before, kept as it was.

golden_upgrade/VERSION.yaml is a cluster as that release left it: what its renderer made, frozen.
``pytest --update-golden`` makes the one of the present version where it is missing and never
changes one; until the version is released it may be removed to be made anew.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, FakeCluster
from tests.operator.fake_jobs import end_fetch
from tests.operator.fake_operator import (
    Clock,
    FakeOperator,
    cluster_with_claim,
    converge,
    service_manifest,
    service_ref,
    started,
)
from tests.operator.test_memory_fit import MUCH, SMALL, WITH_FACTS, fetched

from mizzen_operator import __version__
from mizzen_operator.cli import as_yaml
from mizzen_operator.prove_upgrade import prove_upgrade_verb
from mizzen_operator.render.templates import TEMPLATES
from mizzen_operator.store import CONTROLLER_REVISION, SERVICE_KIND, ResourceKind

FROZEN = Path(__file__).parent / "golden_upgrade"
KINDS = (SERVICE_KIND, CONTROLLER_REVISION, STATEFULSET, DEPLOYMENT)
OTHER_IMAGES = ("--frontend-image", "front:next", "--worker-image", "worker:next")
SERVICES: dict[str, dict[str, Any]] = {
    "split": {"replicas": 2},
    "unified": {"topology": "Unified", "model": {"source": {"pvc": {"claimName": "weights"}}}},
    "full": {
        "engine": {
            "images": {"frontend": "mine/front:1", "worker": "mine/worker:1"},
            "imagePullSecrets": [{"name": "registry"}],
            "args": ["--max-running-requests", "8"],
            "env": [{"name": "A", "value": "$(B)"}],
            "contextLength": 4096,
            "pageSize": 16,
            "kvTokens": 32768,
            "dtype": "bfloat16",
            "startupDeadlineSeconds": 600,
        },
        "tokenizer": {"replicas": 3, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
        "worker": {
            "gpu": {"countPerNode": 1},
            "resources": {"limits": {"cpu": "3500m", "memory": "16Gi"}},
            "drain": {"timeoutSeconds": 60},
        },
        "routing": {"service": {"type": "LoadBalancer", "port": 8080}},
        "networkPolicy": "Off",
    },
    "stopped": {"stopped": True},
}


def dump(cluster: FakeCluster, kinds: tuple[ResourceKind, ...] = KINDS) -> str:
    """As kubectl prints it."""
    items = [item for kind in kinds for item in cluster.objects(kind) if not is_others(item)]
    for item in items:
        item["metadata"].pop("managedFields", None)
    return as_yaml({"apiVersion": "v1", "kind": "List", "items": items})


def is_others(item: dict[str, Any]) -> bool:
    """What Kubernetes keeps of a StatefulSet: in a real dump, but large and passed over."""
    return "controller.kubernetes.io/hash" in item["metadata"].get("labels", {})


def world() -> FakeCluster:
    """A cluster as this release leaves it."""
    cluster = cluster_with_claim()
    for name, spec in SERVICES.items():
        cluster.put(SERVICE_KIND, service_manifest(name, **spec))
    converge(FakeOperator(cluster, Clock()))
    return cluster


def prove(tmp_path: Path, text: str, *flags: str) -> int:
    path = tmp_path / "dump.yaml"
    path.write_text(text, encoding="utf-8")
    return prove_upgrade_verb(["-f", str(path), *flags])


def test_the_present_release_is_frozen_too(*, update_golden: bool) -> None:
    path = FROZEN / f"{__version__}.yaml"
    if update_golden and not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(dump(world()), encoding="utf-8")
    assert path.exists(), "run once: pytest --update-golden, before the release"


@pytest.mark.parametrize("version", sorted(path.stem for path in FROZEN.glob("*.yaml")))
@pytest.mark.parametrize("flags", [(), OTHER_IMAGES], ids=["same", "images"])
def test_row_1_no_pod_of_a_release_before_moves(
    version: str, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FROZEN / f"{version}.yaml").read_text(encoding="utf-8")
    assert prove(tmp_path, text, *flags) == 0
    names = sorted(
        item["metadata"]["name"]
        for item in yaml.safe_load(text)["items"]
        if item["kind"] == SERVICE_KIND.kind
    )
    assert names
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"team/{name}: nothing moves" for name in names]


def test_a_service_that_follows_is_told_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = started(updatePolicy="Follow")
    assert prove(tmp_path, dump(operator.cluster), *OTHER_IMAGES) == 0
    head, *moves = capsys.readouterr().out.splitlines()
    assert head == "team/chat: rolls to the new defaults, for spec.updatePolicy is Follow"
    group, tokenizers = moves
    assert group.startswith("  StatefulSet chat-w-")
    assert " is replaced: wanted is revision " in group
    assert tokenizers.startswith("  Deployment chat-tokenizer changes ")
    assert tokenizers.endswith("containers[0].image")


def test_a_template_that_changed_under_its_version_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dump(started().cluster)
    released = TEMPLATES["v1"].worker_group

    def changed(*arguments: Any) -> dict[str, Any]:
        obj = released(*arguments)
        obj["spec"]["template"]["spec"]["hostname"] = "another"
        obj["metadata"]["annotations"] = {"serving.mizzen.dev/applied-hash": "another"}
        return obj

    monkeypatch.setattr(
        "mizzen_operator.render.templates.TEMPLATES",
        {"v1": type(TEMPLATES["v1"])(
            worker_group=changed, tokenizer_deployment=TEMPLATES["v1"].tokenizer_deployment
        )},
    )  # fmt: skip
    assert prove(tmp_path, text) == 1
    head, move = capsys.readouterr().out.splitlines()
    assert head == "team/chat: moves"
    assert move.startswith("  StatefulSet chat-w-")
    assert move.endswith(" changes .spec.template.spec.hostname")


def test_a_lost_history_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = tuple(kind for kind in KINDS if kind != CONTROLLER_REVISION)
    text = dump(started().cluster, kinds)
    assert prove(tmp_path, text, *OTHER_IMAGES) == 1
    out = capsys.readouterr().out
    assert out.startswith("team/chat: moves\n  StatefulSet chat-w-")
    assert "  Deployment chat-tokenizer changes " in out


def test_a_dump_without_groups_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = tuple(kind for kind in KINDS if kind.kind != "StatefulSet")
    assert prove(tmp_path, dump(started().cluster, kinds)) == 1
    assert "  no StatefulSet of it is in the dump: nothing is proven" in capsys.readouterr().out


@pytest.mark.parametrize("is_fetched", [False, True], ids=["fetching", "does-not-fit"])
def test_a_service_that_has_no_group_yet_does_not_move(
    is_fetched: bool,  # noqa: FBT001
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    operator = FakeOperator(FakeCluster(), Clock())
    operator.cluster.put(SERVICE_KIND, fetched(SMALL, engine=MUCH))
    converge(operator)
    if is_fetched:
        end_fetch(operator.cluster, **WITH_FACTS)
        converge(operator)
    assert prove(tmp_path, dump(operator.cluster), *OTHER_IMAGES) == 0
    assert capsys.readouterr().out == "team/chat: nothing moves\n"


def test_a_rollout_under_way_is_no_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(replicas=2, engine={"contextLength": 512}))
    operator.run()
    assert prove(tmp_path, dump(cluster), *OTHER_IMAGES) == 0
    assert capsys.readouterr().out == "team/chat: nothing moves\n"


def test_a_spec_that_this_release_refuses_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = started()
    cluster = operator.cluster
    cluster.edit(service_ref(), lambda item: item["spec"].update(prefill={"replicas": 1}))
    assert prove(tmp_path, dump(cluster)) == 1
    assert "  is refused: spec.prefill: " in capsys.readouterr().out
    converge(operator)
    assert prove(tmp_path, dump(cluster)) == 0
    assert capsys.readouterr().out == "team/chat: is refused already, so nothing moves\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (": :", "cannot read"),
        ("kind: ConfigMap", "has no InferenceService"),
        ("kind: List", "one has no items"),
        (as_yaml(service_manifest()), "one has no uid"),
    ],
)
def test_what_is_no_dump_is_one_sentence(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(tmp_path, text) == 2
    said = capsys.readouterr().err
    assert said.startswith("mizzen prove-upgrade: ")
    assert sentence in said
    assert said.count("\n") == 1
