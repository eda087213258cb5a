"""The chart as Helm renders it: golden output, rights, values, and copies that must not drift."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmValuesError, lint

from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.settings import read_settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "mizzen"
GOLDEN = Path(__file__).parent / "golden_chart"
TABLE = re.compile(r"(<!-- table: .*? -->\n).*(<!-- end -->)", re.DOTALL)

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "one-namespace": {
        "watchNamespace": "team",
        "installCrds": False,
        "monitoring": True,
        "gatewayApi": True,
        "dryRunPods": False,
        "imageRegistry": "mirror.example:5000/mizzen",
        "image": "registry.example/operator@sha256:0123",
        "servicePullSecrets": ["mirror", "other"],
        "imagePullSecrets": ["registry"],
        "replicas": 2,
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "podAnnotations": {"example.com/a": "b"},
        "priorityClassName": "high",
    },
}


def rendered(values: dict[str, Any]) -> dict[str, str]:
    return Chart.load(CHART).render(values, name="mizzen", namespace="mizzen-system")


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    texts = (text for path, text in rendered(values).items() if path.endswith(".yaml"))
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def of_kind(kind: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in objects(values) if item["kind"] == kind]


@pytest.mark.parametrize("case", CASES)
def test_rendered_output_is_as_reviewed(case: str, *, update_golden: bool) -> None:
    found = [item for item in objects(CASES[case]) if item["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(found, sort_keys=True)
    path = GOLDEN / f"{case}.yaml"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_helm_finds_nothing_to_complain_about() -> None:
    report = lint(CHART, strict=True)
    assert report["errors"] == []
    assert [item for item in report["messages"] if item["severity"] > 1] == []


def test_the_definitions_are_the_generated_ones_and_are_kept() -> None:
    generated = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    found = of_kind("CustomResourceDefinition", {})
    for crd in found:
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    by_name = {crd["metadata"]["name"]: crd for crd in found}
    assert by_name == {crd["metadata"]["name"]: crd for crd in generated}
    assert len(found) == len(by_name) == 2
    assert of_kind("CustomResourceDefinition", {"installCrds": False}) == []


def test_row_20_the_definitions_go_with_the_release_if_told_so() -> None:
    found = of_kind("CustomResourceDefinition", {"keepCrds": False})
    assert len(found) == 2
    assert all("annotations" not in crd["metadata"] for crd in found)


def images(values: dict[str, Any]) -> dict[str, str]:
    """Images that the chart names, by what uses them."""
    (deployment,) = of_kind("Deployment", values)
    (pod,) = of_kind("Pod", values)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item.get("value", "") for item in container["env"]}
    return {
        "operator": container["image"],
        "test": pod["spec"]["containers"][0]["image"],
        "frontend": environ["MIZZEN_OPERATOR_FRONTEND_IMAGE"],
        "worker": environ["MIZZEN_OPERATOR_WORKER_IMAGE"],
    }


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("", "mirror:5000/a/mizzen-operator:0.1.0"),
        ("operator:2", "mirror:5000/a/operator:2"),
        ("team/operator@sha256:01", "mirror:5000/a/team/operator@sha256:01"),
        ("registry.example/operator:2", "registry.example/operator:2"),
        ("registry:5000/operator", "registry:5000/operator"),
        ("localhost/operator:2", "localhost/operator:2"),
    ],
)
def test_a_registry_is_put_before_images_without_one(image: str, wanted: str) -> None:
    found = images({"imageRegistry": "mirror:5000/a", "image": image})
    assert (found["operator"], found["test"]) == (wanted, wanted)
    assert found["worker"] == "mirror:5000/a/mizzen-worker:0.1.0"
    assert found["frontend"] == "mirror:5000/a/mizzen-frontend:0.1.0"
    assert set(images({"image": "x"}).values()) == {
        "x",
        "mizzen-worker:0.1.0",
        "mizzen-frontend:0.1.0",
    }


def test_the_test_pod_has_no_rights_and_is_allowed_under_restricted_pod_security() -> None:
    (pod,) = of_kind("Pod", {})
    (container,) = pod["spec"]["containers"]
    account = pod["spec"]["serviceAccountName"]
    bindings = [*of_kind("ClusterRoleBinding", {}), *of_kind("RoleBinding", {})]
    assert account not in {item["name"] for binding in bindings for item in binding["subjects"]}
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["args"][0] == "check-install"
    (service,) = of_kind("Service", {})
    assert container["args"][2] == (
        f"http://{service['metadata']['name']}.mizzen-system.svc:{service['spec']['ports'][0]['port']}"
    )
    # Else the Service, and the Deployment, would count the test as an operator.
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != "mizzen-operator"


def test_versions_are_those_of_the_package() -> None:
    from mizzen_operator import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for item in rules
        for group in item["apiGroups"]
        for resource in item["resources"]
        for verb in item["verbs"]
    }


DRY_RUN_PODS = ("", "pods", "create")
LOOK_AROUND = ("coordination.k8s.io", "leases", "list")
"""For operators of single namespaces."""


def needed_rights(values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What the code can call, kind by kind."""
    yield DRY_RUN_PODS
    for child in CHILD_KINDS:
        group = child.api_version.rpartition("/")[0]
        if child.chart_value and not values.get(child.chart_value):
            continue
        for verb in ("get", "list", "create", "patch", "delete"):
            yield group, child.plural, verb
        if not child.is_optional:
            yield group, child.plural, "watch"
    for verb in ("get", "list", "watch", "delete"):
        yield "", "pods", verb
    for verb in ("get", "list", "watch"):
        yield "serving.mizzen.dev", "inferenceservices", verb
    yield "serving.mizzen.dev", "inferenceservices/status", "patch"
    yield "serving.mizzen.dev", "inferencerolescalers/status", "patch"
    yield "serving.mizzen.dev", "inferenceservices/finalizers", "update"
    yield "", "secrets", "create"
    yield "", "secrets", "patch"
    yield "", "secrets", "delete"
    yield "", "events", "create"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("ClusterRole", {}),
        ("Role", {"watchNamespace": "team"}),
        ("ClusterRole", {"monitoring": True}),
        ("ClusterRole", {"gatewayApi": True}),
    ],
)
def test_row_63_rights_are_exactly_what_the_code_calls(kind: str, values: dict[str, Any]) -> None:
    (role,) = [
        item for item in of_kind(kind, values) if not item["metadata"]["name"].endswith("-lease")
    ]
    looks_around = set() if kind == "Role" else {LOOK_AROUND}
    assert rights(role["rules"]) == set(needed_rights(values)) | looks_around
    named = [item for item in role["rules"] if "leases" in item["resources"]]
    assert all(item["resourceNames"] == ["mizzen-operator"] for item in named)
    assert role["metadata"].get("namespace") == values.get("watchNamespace")
    if kind == "Role":
        assert of_kind("ClusterRole", values) == []


def test_the_right_to_create_pods_can_be_withheld() -> None:
    (role,) = of_kind("ClusterRole", {"dryRunPods": False})
    assert rights(role["rules"]) == (set(needed_rights({})) | {LOOK_AROUND}) - {DRY_RUN_PODS}


def test_the_lease_is_the_only_right_in_the_own_namespace() -> None:
    (role,) = of_kind("Role", {})
    assert rights(role["rules"]) == {
        ("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "update")
    }
    named = [item for item in role["rules"] if "create" not in item["verbs"]]
    assert [item["resourceNames"] for item in named] == [["mizzen-operator"]]


@pytest.mark.parametrize("scope", ["", "team"])
def test_two_releases_cannot_have_the_same_scope(scope: str) -> None:
    """Helm refuses to take over an object of another release, so these names hold the scope."""
    chart = Chart.load(CHART)
    texts = chart.render({"watchNamespace": scope}, name="other", namespace="elsewhere")
    items = [
        item
        for path, text in texts.items()
        if path.endswith(".yaml")
        for item in yaml.safe_load_all(text)
        if item
    ]
    roles = [item for item in items if item["kind"] in ("Role", "ClusterRole")]
    names = {item["metadata"]["name"] for item in roles}
    assert names == {"mizzen-operator", "mizzen-operator-lease"}
    (lease,) = [item for item in roles if item["metadata"]["name"].endswith("-lease")]
    assert lease["metadata"]["namespace"] == (scope or "elsewhere")
    (deployment,) = [item for item in items if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item.get("value", "x") for item in container["env"]}
    settings = read_settings(environ)
    assert (settings.lease_namespace, settings.lease_name) == (
        scope or "elsewhere",
        "mizzen-operator",
    )


def test_the_operator_understands_the_environment_that_the_chart_sets() -> None:
    (deployment,) = of_kind(
        "Deployment",
        {
            "watchNamespace": "team",
            "replicas": 2,
            "servicePullSecrets": ["one", "two"],
            "gpuClasses": {"ours": "80Gi", "a-little": "512Mi"},
        },
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item.get("value", "from-the-pod") for item in container["env"]}
    settings = read_settings(environ)
    assert settings.namespace == "mizzen-system"
    assert settings.watch_namespace == "team"
    assert settings.identity == "from-the-pod"
    assert settings.lease_name == "mizzen-operator"
    assert settings.worker_image.startswith("mizzen-worker:")
    assert settings.http_port == container["ports"][0]["containerPort"]
    assert settings.resync_seconds == 300
    assert settings.service_pull_secret_names == ("one", "two")
    assert settings.own_gpu_classes == (("a-little", 512 << 20), ("ours", 80 << 30))


def test_the_pod_is_allowed_under_restricted_pod_security() -> None:
    (deployment,) = of_kind("Deployment", {})
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"replica": 2}, "replica"),
        ({"imageRegistry": "https://x"}, "imageRegistry"),
        ({"servicePullSecrets": ["A b"]}, "servicePullSecrets"),
        ({"gpuClasses": {"ours": "lots"}}, "gpuClasses"),
        ({"gpuClasses": {"Ours": "80Gi"}}, "Ours"),
        ({"replicas": "two"}, "replicas"),
        ({"logLevel": "LOUD"}, "logLevel"),
        ({"watchNamespace": "Team"}, "watchNamespace"),
        ({"resources": {"request": {}}}, "request"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(HelmValuesError, match=field):
        Chart.load(CHART).validate_schema(values)


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


def documented_values() -> Iterator[tuple[str, str, str]]:
    """Name, default and comment of each value."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if line.startswith("# "):
            comment.append(line[2:])
        elif not line.strip():
            comment = []
        elif not line.startswith(" "):
            name = line.partition(":")[0]
            yield name, json.dumps(values[name]), " ".join(comment)


def test_the_readme_lists_every_value(*, update_golden: bool) -> None:
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in documented_values()]
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
    path = CHART / "README.md"
    found = path.read_text()
    wanted = TABLE.sub(lambda match: f"{match[1]}{table}\n{match[2]}", found)
    if update_golden:
        path.write_text(wanted)
    assert all(text for _, _, text in documented_values())
    assert path.read_text() == wanted
