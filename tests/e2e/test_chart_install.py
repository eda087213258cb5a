"""Ways to install, upgrade and remove the operator, on a real API server with real Helm."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, Config, HelmError
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import CHART, RELEASE, SYSTEM
from tests.devcluster.folders import REPOSITORY
from tests.e2e.definitions import wait_until_served
from tests.e2e.operator_process import (
    USER,
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
    install,
    role_of,
)
from tests.e2e.waiting import wait_for
from tests.operator.fake_operator import service_manifest

from mizzen_operator.check_install import check_install_verb

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CRDS = sorted((REPOSITORY / "crds").glob("*.yaml"))
KINDS = ("inferenceservices.serving.mizzen.dev", "inferencerolescalers.serving.mizzen.dev")
DEFINITIONS = tuple(f"crd/{kind}" for kind in KINDS)
OPENAPI = "/openapi/v3/apis/serving.mizzen.dev/v1alpha1"
MAX_ANNOTATIONS = 262_144


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    manifest = service_manifest(name, **spec)
    del manifest["metadata"]["namespace"]
    return manifest


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The chart of this release without a running operator; it is so again afterwards."""
    install(cluster, {"replicas": 0})
    wait_until_served(cluster, *KINDS)
    yield cluster
    install(cluster, {"replicas": 0})
    wait_until_served(cluster, *KINDS)


def process_of(
    cluster: Cluster, folder: Path, namespace: str = SYSTEM, **settings: str
) -> OperatorProcess:
    """An operator that is not started yet, under the rights of the release in a namespace."""
    return OperatorProcess(
        kubeconfig=account_kubeconfig(cluster, folder, namespace=namespace),
        log=folder / f"operator-{namespace}.log",
        identity=f"local-{namespace}",
        settings={"NAMESPACE": namespace, **settings},
    )


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One of the whole cluster; it is gone after the test."""
    process = process_of(installed, tmp_path)
    yield process
    process.end()


def accepted(cluster: Cluster, namespace: str, name: str = "chat") -> tuple[str, str]:
    found = condition(cluster, namespace, name, "Accepted")
    return found.get("status", ""), found.get("reason", "")


def has_objects(cluster: Cluster, namespace: str) -> bool:
    return get(cluster, "deployment", "chat-tokenizer", "-n", namespace) is not None


# -- definitions ------------------------------------------------------------------------------


def test_row_5_the_definitions_can_be_applied_client_side(installed: Cluster) -> None:
    for path in CRDS:
        installed.kubectl("apply", "-f", str(path))
    for name in DEFINITIONS:
        annotations = get(installed, name)["metadata"]["annotations"]
        size = sum(len(key) + len(value) for key, value in annotations.items())
        assert "kubectl.kubernetes.io/last-applied-configuration" in annotations
        assert size < MAX_ANNOTATIONS / 2


def chart_with_older_definitions(folder: Path) -> Path:
    """The chart as a release before would be: it lacks fields, and one has another type."""
    chart = folder / "older"
    shutil.copytree(CHART, chart)
    path = chart / "files" / "inferenceservices.yaml"
    definition = yaml.safe_load(path.read_text())
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    del spec["properties"]["revisionHistoryLimit"]
    for role in status["properties"]["roles"]["properties"].values():
        for name in ("asked", "propagated"):
            role["properties"].pop(name, None)
    spec["properties"]["tokenizer"]["properties"]["replicas"] = {"type": "string", "maxLength": 9}
    # Rules may speak of what is left out.
    schema.pop("x-kubernetes-validations")
    spec.pop("x-kubernetes-validations")
    path.write_text(yaml.dump(definition, Dumper=NoAliases, sort_keys=False))
    return chart


class NoAliases(yaml.SafeDumper):
    """Writes a part that occurs twice, twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.fixture
def older(installed: Cluster, tmp_path: Path) -> Cluster:
    """A cluster with the definitions of a release before."""
    chart = chart_with_older_definitions(tmp_path)
    with Config(kubeconfig_path=str(installed.kubeconfig), namespace=SYSTEM) as helm:
        helm.upgrade(chart, RELEASE, {"replicas": 0}, namespace=SYSTEM, reset_values=True)
    wait_for(
        "the API server publishes them",
        lambda: "revisionHistoryLimit" not in json.dumps(installed.api.call("GET", OPENAPI)),
    )
    return installed


def test_row_7_an_operator_newer_than_the_definitions_names_the_fields_and_works(
    older: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    operator.wait_until_synced()
    log = operator.log.read_text()
    assert "they lack InferenceService spec.revisionHistoryLimit" in log
    assert "InferenceService status.roles.worker.asked" in log
    assert operator.metric("mizzen_operator_definition_fields_missing") >= 3
    apply(older, namespace, service())
    wait_for(
        "a status",
        lambda: condition(older, namespace, "chat", "Ready").get("reason") == "ClaimNotFound",
    )
    worker = role_of(older, namespace, "worker")
    assert worker["desired"] == 1
    assert "asked" not in worker
    writes = [
        event
        for event in older.audit_events()
        if event.user == USER and event.namespace == namespace
    ]
    assert [event for event in writes if event.status >= 400] == []
    # The upgrade of the definitions is noticed without a restart.
    install(older, {"replicas": 0})
    wait_for(
        "the whole status",
        lambda: "asked" in role_of(older, namespace, "worker"),
    )
    assert operator.metric("mizzen_operator_definition_fields_missing") == 0


def test_rows_6_and_9_an_upgrade_takes_the_definitions_along_and_an_old_object_harms_nobody(
    older: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(older, namespace, service("old", tokenizer={"replicas": "2"}))
    apply(older, namespace, service("good"))
    install(older, {"replicas": 0})
    wait_for(
        "the API server publishes them",
        lambda: "revisionHistoryLimit" in json.dumps(older.api.call("GET", OPENAPI)),
    )
    operator.start()
    operator.wait_until_synced()
    wait_for("the good one", lambda: accepted(older, namespace, "good") == ("True", "Valid"))
    wait_for(
        "the old one is refused by field",
        lambda: accepted(older, namespace, "old") == ("False", "InvalidSpec"),
    )
    message = condition(older, namespace, "old", "Accepted")["message"]
    assert "spec.tokenizer.replicas" in message
    # What the older definition did not know is stored now.
    apply(older, namespace, service("good", revisionHistoryLimit=3))
    assert get(older, "misvc", "good", "-n", namespace)["spec"]["revisionHistoryLimit"] == 3
    apply(older, namespace, service("other"))
    wait_for("another one", lambda: accepted(older, namespace, "other") == ("True", "Valid"))


# -- ways to install --------------------------------------------------------------------------


def test_row_8_definitions_by_kubectl_and_a_render_by_gitops_converge_too(
    installed: Cluster, namespace: str, tmp_path: Path
) -> None:
    install(installed, {"replicas": 0, "installCrds": False})
    installed.kubectl("delete", *DEFINITIONS)
    for path in CRDS:
        installed.kubectl("apply", "-f", str(path))
    wait_until_served(installed, *KINDS)
    values = {"replicas": 0, "installCrds": False, "watchNamespace": namespace}
    texts = Chart.load(CHART).render(values, name=RELEASE, namespace=namespace)
    documents = "\n---\n".join(
        text for path, text in texts.items() if path.endswith(".yaml") and "/tests/" not in path
    )
    installed.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=documents)
    process = process_of(installed, tmp_path, namespace, WATCH_NAMESPACE=namespace)
    try:
        process.start()
        process.wait_until_synced()
        apply(installed, namespace, service())
        wait_for("objects", lambda: has_objects(installed, namespace))
    finally:
        process.end()
        # Another owner's than Helm's, which would not take them over.
        installed.kubectl("delete", *DEFINITIONS)


def test_an_account_without_rights_can_check_the_installation(
    installed: Cluster,
    namespace: str,
    operator: OperatorProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = installed.kubectl("create", "token", "default", "-n", namespace).strip()
    document = yaml.safe_load(installed.kubeconfig.read_text())
    document["users"] = [{"name": "nobody", "user": {"token": token}}]
    for context in document["contexts"]:
        context["context"]["user"] = "nobody"
    kubeconfig = tmp_path / "nobody.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    operator.start()
    where = ["--kubeconfig", str(kubeconfig)]
    assert check_install_verb([*where, "--operator", f"http://127.0.0.1:{operator.port}"]) == 0
    assert "the operator is ready" in capsys.readouterr().out
    operator.end()
    dead = ["--operator", f"http://127.0.0.1:{operator.port}", "--timeout", "0"]
    assert check_install_verb([*where, *dead]) == 1
    assert "no answer" in capsys.readouterr().out


def test_pods_get_the_pull_secrets_of_the_installation_and_templates_do_not(
    installed: Cluster, namespace: str, tmp_path: Path
) -> None:
    process = process_of(installed, tmp_path, SERVICE_PULL_SECRETS="mirror")
    try:
        process.start()
        own = {"engine": {"imagePullSecrets": [{"name": "own"}]}}
        apply(installed, namespace, service())
        apply(installed, namespace, service("second", **own))

        def secrets() -> dict[str, set[str]]:
            found = get(installed, "pods", "-n", namespace) or {"items": ()}
            names: dict[str, set[str]] = {}
            for pod in found["items"]:
                name = pod["metadata"]["labels"]["serving.mizzen.dev/service"]
                given = pod["spec"].get("imagePullSecrets") or ()
                names.setdefault(name, set()).update(item["name"] for item in given)
            return names

        wait_for("pods", lambda: secrets() == {"chat": {"mirror"}, "second": {"own"}})
        template = get(installed, "deployment", "chat-tokenizer", "-n", namespace)["spec"][
            "template"
        ]
        assert "imagePullSecrets" not in template["spec"]
    finally:
        process.end()


# -- two installations ------------------------------------------------------------------------


def test_helm_refuses_a_second_release_for_the_same_namespaces(
    installed: Cluster, namespace: str
) -> None:
    refused = re.compile("invalid ownership metadata|cannot be imported")
    values = {"replicas": 0, "installCrds": False}
    with Config(kubeconfig_path=str(installed.kubeconfig), namespace=namespace) as helm:
        with pytest.raises(HelmError, match=refused):
            helm.install(CHART, "second", values, namespace=namespace)
        one = {**values, "watchNamespace": namespace}
        helm.install(CHART, "first-here", one, namespace=namespace)
        with pytest.raises(HelmError, match=refused):
            helm.install(CHART, "second-here", one, namespace=namespace)


def test_an_operator_of_the_cluster_leaves_a_namespace_to_its_own_one(
    installed: Cluster, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    values = {"replicas": 0, "installCrds": False, "watchNamespace": namespace}
    install(installed, values, namespace=namespace)
    local = process_of(installed, tmp_path, namespace, WATCH_NAMESPACE=namespace)
    try:
        local.start()
        local.wait_until_synced()
        operator.start()
        operator.wait_until_synced()
        assert f"namespace {namespace} is served by an operator of its own" in (
            operator.log.read_text()
        )
        apply(installed, namespace, service())
        wait_for("objects", lambda: has_objects(installed, namespace))
        writers = {
            event.user
            for event in installed.audit_events()
            if event.namespace == namespace and event.resource == "deployments"
        }
        own = f"system:serviceaccount:{namespace}:mizzen-operator"
        assert own in writers
        assert USER not in writers
        assert local.stop() == 0
        installed.kubectl("delete", "deployment", "chat-tokenizer", "-n", namespace)
        wait_for("the other takes over", lambda: has_objects(installed, namespace))
    finally:
        local.end()


# -- removing ---------------------------------------------------------------------------------


def test_row_20_a_namespace_ends_after_the_operator_was_removed(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    doomed = f"{namespace}-doomed"
    installed.kubectl("create", "namespace", doomed)
    operator.start()
    apply(installed, doomed, service())
    wait_for("objects", lambda: has_objects(installed, doomed))
    assert operator.stop() == 0
    with Config(kubeconfig_path=str(installed.kubeconfig), namespace=SYSTEM) as helm:
        helm.uninstall(RELEASE)
    # Kept: the definitions, and with them what runs.
    assert get(installed, "misvc", "chat", "-n", doomed) is not None
    assert has_objects(installed, doomed)
    installed.kubectl("delete", "namespace", doomed, "--timeout=100s")


def test_row_20_told_to_keep_nothing_a_removal_takes_every_service_along(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    apply(installed, namespace, service())
    wait_for("objects", lambda: has_objects(installed, namespace))
    assert operator.stop() == 0
    install(installed, {"replicas": 0, "keepCrds": False})
    assert has_objects(installed, namespace)
    with Config(kubeconfig_path=str(installed.kubeconfig), namespace=SYSTEM) as helm:
        helm.uninstall(RELEASE)
    wait_for("the definitions are gone", lambda: get(installed, *DEFINITIONS) is None)
    wait_for("and what services owned", lambda: not has_objects(installed, namespace))
    wait_for(
        "all of it",
        lambda: (
            get(
                installed,
                "statefulsets,services,sa",
                "-n",
                namespace,
                "-l",
                "serving.mizzen.dev/service-uid",
            )
            is None
        ),
    )
