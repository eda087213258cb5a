"""A pod template over another one: nothing of ours is lost, and nothing is added twice."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.documents import resolved

from mizzen_operator.render.pod_template import with_pod_template
from mizzen_operator.render.pod_template_rules import template_rule_problems
from mizzen_operator.render.render import rendered_worker_group
from mizzen_operator.render.strategic_merge import Written, merged, steps_of, written_at
from mizzen_operator.worker_contract import CONTAINER

BASE: dict[str, Any] = rendered_worker_group(
    resolved(topology="Split", worker={"parallelism": {"tensor": 2, "nodes": 2}}), 0
)["spec"]["template"]
FEW = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["1", "2"])


def by_key(field: str, item: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[Any]]:
    return st.lists(item, max_size=3, unique_by=lambda one: one[field])


VARIABLES = by_key(
    "name",
    st.one_of(
        st.fixed_dictionaries({"name": FEW, "value": VALUES}),
        st.fixed_dictionaries(
            {"name": FEW, "valueFrom": st.just({"fieldRef": {"fieldPath": "x"}})}
        ),
    ),
)
MOUNTS = by_key(
    "mountPath",
    st.fixed_dictionaries({"name": FEW, "mountPath": FEW.map(lambda name: f"/extra/{name}")}),
)
OTHERS = by_key(
    "name",
    st.fixed_dictionaries(
        {"name": FEW, "image": VALUES},
        optional={
            "env": VARIABLES,
            "args": st.lists(VALUES, max_size=3),
            "securityContext": st.just({"capabilities": {"drop": ["ALL", "NET_RAW"]}}),
        },
    ),
)
OURS = st.lists(
    st.fixed_dictionaries({"name": st.just(CONTAINER), "env": VARIABLES, "volumeMounts": MOUNTS}),
    max_size=1,
)
TERM = st.fixed_dictionaries({"topologyKey": FEW})
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {"labels": st.dictionaries(FEW, VALUES), "annotations": st.dictionaries(FEW, VALUES)}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.tuples(OURS, OTHERS).map(lambda pair: [*pair[0], *pair[1]]),
                "initContainers": by_key(
                    "name", st.fixed_dictionaries({"name": FEW, "image": VALUES})
                ),
                "volumes": by_key(
                    "name",
                    st.fixed_dictionaries(
                        {"name": st.sampled_from(["a", "tmp", "cache"]),
                         "emptyDir": st.fixed_dictionaries({"sizeLimit": VALUES})}
                    ),
                ),
                "tolerations": st.lists(st.fixed_dictionaries({"key": FEW}), max_size=3),
                "nodeSelector": st.dictionaries(FEW, VALUES),
                "affinity": st.fixed_dictionaries(
                    {"podAntiAffinity": st.fixed_dictionaries(
                        {"preferredDuringSchedulingIgnoredDuringExecution": st.lists(
                            st.fixed_dictionaries({"weight": st.just(1), "podAffinityTerm": TERM}),
                            max_size=2,
                        )}
                    )}
                ),
                "securityContext": st.fixed_dictionaries({"supplementalGroups": st.just([7])}),
            },
        ),
    },
)  # fmt: skip


@given(template=TEMPLATES)
def test_a_second_time_changes_nothing_and_nothing_is_changed_in_place(
    template: dict[str, Any],
) -> None:
    base, before = deepcopy(BASE), deepcopy(template)
    once = with_pod_template(base, template)
    assert with_pod_template(once, template) == once
    assert (base, template) == (BASE, before)


def test_an_empty_template_is_as_none() -> None:
    for empty in (None, {}, {"spec": {}}, {"metadata": {}, "spec": {"containers": []}}):
        assert with_pod_template(BASE, empty) == BASE


@given(template=TEMPLATES)
def test_what_the_rules_let_through_keeps_ours(template: dict[str, Any]) -> None:
    assert template_rule_problems("worker", BASE, template) == []
    whole = with_pod_template(BASE, template)
    ours, now = BASE["spec"]["containers"][0], whole["spec"]["containers"][0]
    lists = ("env", "volumeMounts")
    assert {key: now[key] for key in now if key not in lists} == {
        key: ours[key] for key in ours if key not in lists
    }
    for key in lists:
        assert now[key][: len(ours[key])] == ours[key]
    names = {item["name"] for item in template.get("spec", {}).get("volumes", [])}
    kept = [item for item in BASE["spec"]["volumes"] if item["name"] not in names]
    assert [item for item in whole["spec"]["volumes"] if item["name"] not in names] == kept
    terms = "preferredDuringSchedulingIgnoredDuringExecution"
    own = BASE["spec"]["affinity"]["podAntiAffinity"][terms]
    assert whole["spec"]["affinity"]["podAntiAffinity"][terms][: len(own)] == own
    for part in ("labels", "annotations"):
        assert BASE["metadata"][part].items() <= whole["metadata"][part].items()
    fixed = BASE["spec"].keys() - {"containers", "volumes", "affinity", "securityContext"}
    assert {key: whole["spec"][key] for key in fixed} == {key: BASE["spec"][key] for key in fixed}
    assert BASE["spec"]["securityContext"].items() <= whole["spec"]["securityContext"].items()


@given(template=TEMPLATES)
def test_every_container_is_restricted(template: dict[str, Any]) -> None:
    spec = with_pod_template(BASE, template)["spec"]
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert "ALL" in container["securityContext"]["capabilities"]["drop"]


@pytest.mark.parametrize(
    ("base", "patch", "name", "expected"),
    [
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, "", {"a": 1, "b": {"c": 1, "d": 2}}),
        ([{"name": "a", "x": 1}], [{"name": "b"}, {"name": "a", "y": 2}], "containers",
         [{"name": "a", "x": 1, "y": 2}, {"name": "b"}]),
        ([{"name": "a", "value": "1"}], [{"name": "a", "valueFrom": {}}], "env",
         [{"name": "a", "valueFrom": {}}]),
        ([{"containerPort": 1, "protocol": "TCP"}], [{"containerPort": 1, "name": "x"}], "ports",
         [{"containerPort": 1, "protocol": "TCP", "name": "x"}]),
        ([{"key": "a"}], [{"key": "a"}, {"key": "b"}], "tolerations",
         [{"key": "a"}, {"key": "b"}]),
        ("1", "2", "image", "2"),
        ({"a": 1}, [1], "odd", [1]),
    ],
)  # fmt: skip
def test_one_over_the_other(base: Any, patch: Any, name: str, expected: Any) -> None:
    assert merged(base, patch, name) == expected


def test_steps_of_all_forms_of_paths() -> None:
    assert steps_of("spec.containers[1].resources.limits[example.com/card]") == (
        "spec", "containers", "1", "resources", "limits", "example.com/card",
    )  # fmt: skip
    assert steps_of('.spec.containers[name="x"].imag') == ("spec", "containers", "x", "imag")


PATCH: dict[str, Any] = {
    "metadata": {"labels": {"team": "a b"}},
    "spec": {
        "tolerations": [{"key": "k"}],
        "containers": [
            {"name": "side", "imag": "x"},
            {"name": CONTAINER, "env": [{"name": "A", "value": "1"}]},
        ],
        "volumes": [{"name": "own", "emptyDir": {}}],
    },
}
WHOLE: Mapping[str, Any] = with_pod_template(BASE, PATCH)
NUM_ENV = len(BASE["spec"]["containers"][0]["env"])
NUM_VOLUMES = len(BASE["spec"]["volumes"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec.containers[1].imag", Written(path=".spec.containers[0].imag", value="x")),
        ('spec.containers[name="side"].imag', Written(path=".spec.containers[0].imag", value="x")),
        ("spec.containers[1].image", Written(path=".spec.containers[0].image", value=None)),
        ("spec.containers[0].image", None),
        (f"spec.containers[0].env[{NUM_ENV}].value",
         Written(path=".spec.containers[1].env[0].value", value="1")),
        ("spec.containers[0].env[0].value", None),
        ("spec.containers[9].image", None),
        ("spec.tolerations[0].operator", Written(path=".spec.tolerations[0].operator", value=None)),
        (f"spec.volumes[{NUM_VOLUMES}].name", Written(path=".spec.volumes[0].name", value="own")),
        ("spec.volumes[0].persistentVolumeClaim.claimName", None),
        ("metadata.labels", Written(path=".metadata.labels", value={"team": "a b"})),
        ("spec.securityContext.runAsUser", None),
    ],
)  # fmt: skip
def test_a_place_leads_back_to_what_was_written(path: str, expected: Written | None) -> None:
    assert written_at(BASE, PATCH, WHOLE, path) == expected
