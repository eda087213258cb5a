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
        "image": "registry.example/operator@sha256:0123",
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


def test_the_definition_is_the_generated_one_and_is_kept() -> None:
    generated = ROOT / "crds" / "serving.mizzen.dev_inferenceservices.yaml"
    (crd,) = of_kind("CustomResourceDefinition", {})
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(generated.read_text())
    assert of_kind("CustomResourceDefinition", {"installCrds": False}) == []


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


def needed_rights() -> Iterator[tuple[str, str, str]]:
    """What the code can call, kind by kind."""
    for child in CHILD_KINDS:
        group = child.api_version.rpartition("/")[0]
        for verb in ("get", "list", "watch", "create", "patch", "delete"):
            yield group, child.plural, verb
    for verb in ("get", "list", "watch", "delete"):
        yield "", "pods", verb
    for verb in ("get", "list", "watch"):
        yield "serving.mizzen.dev", "inferenceservices", verb
    yield "serving.mizzen.dev", "inferenceservices/status", "patch"
    yield "serving.mizzen.dev", "inferenceservices/finalizers", "update"
    yield "", "secrets", "create"
    yield "", "secrets", "patch"
    yield "", "persistentvolumeclaims", "get"
    yield "", "events", "create"


@pytest.mark.parametrize(
    ("kind", "values"), [("ClusterRole", {}), ("Role", {"watchNamespace": "team"})]
)
def test_rights_are_exactly_what_the_code_calls(kind: str, values: dict[str, Any]) -> None:
    (role,) = [
        item for item in of_kind(kind, values) if not item["metadata"]["name"].endswith("-lease")
    ]
    assert rights(role["rules"]) == set(needed_rights())
    assert role["metadata"].get("namespace") == values.get("watchNamespace")
    if values:
        assert of_kind("ClusterRole", values) == []


def test_the_lease_is_the_only_right_in_the_own_namespace() -> None:
    (role,) = of_kind("Role", {})
    assert rights(role["rules"]) == {
        ("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "update")
    }
    named = [item for item in role["rules"] if "create" not in item["verbs"]]
    assert [item["resourceNames"] for item in named] == [["mizzen-operator"]]


def test_the_operator_understands_the_environment_that_the_chart_sets() -> None:
    (deployment,) = of_kind("Deployment", {"watchNamespace": "team", "replicas": 2})
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
