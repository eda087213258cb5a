"""Parsing names the field, the value and what to do; nulls count as absent."""

from typing import Any

import pytest
from tests.operator.spec.rule_examples import document

from mizzen_operator.errors import SpecError
from mizzen_operator.spec.model import Restart, Topology
from mizzen_operator.spec.parse import MAX_DEPTH, parse, restart_of_refused


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


def _problems(patch: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(document(patch))
    return [problem.sentence() for problem in caught.value.problems]


def test_an_unknown_field_is_named_with_its_value() -> None:
    (sentence,) = _problems({"spec": {"worker": {"gpus": 2}}})
    assert sentence.startswith("spec.worker.gpus: is not a field of this version (found 2)")


@pytest.mark.parametrize(
    ("patch", "remedy"),
    [
        ({"replica": 2}, "did you mean replicas?"),
        ({"worker": {"gpu": {"countpernode": 2}}}, "did you mean countPerNode?"),
        ({"worker": {"env": []}}, "did you mean spec.engine.env?"),
        (
            {"worker": {"nodeSelector": {}}},
            "did you mean spec.worker.podTemplate.spec.nodeSelector?",
        ),
        (
            {"quux": 1},
            "remove it, or compare its spelling with kubectl explain inferenceservice",
        ),
    ],
)
def test_an_unknown_field_is_told_what_may_be_meant(patch: dict[str, Any], remedy: str) -> None:
    (sentence,) = _problems({"spec": patch})
    assert sentence.endswith(f"; {remedy}")


@pytest.mark.parametrize(
    ("patch", "end"),
    [
        (
            {"replicas": "2"},
            'spec.replicas: input should be a valid integer (found the text "2"); correct the '
            "value; the field is: Number of worker groups to begin with.",
        ),
        (
            {"worker": {"gpu": 1}},
            "spec.worker.gpu: input should be an object (found 1); correct the value; the field is:"
            " GPUs of each pod. It has the fields resourceName, countPerNode, class,"
            " memory.",
        ),
        (
            {"engine": {"args": "--x 1"}},
            'spec.engine.args: input should be a valid array (found the text "--x 1"); correct the'
            " value; the field is: More command-line arguments of the engine; flags that the"
            " operator sets are refused.",
        ),
    ],
)
def test_a_value_of_another_type_is_told_what_is_meant(patch: dict[str, Any], end: str) -> None:
    (sentence,) = _problems({"spec": patch})
    assert sentence.startswith(end)


@pytest.mark.parametrize("value", ["101%", "00%", 1.5, True, -1, 101, []])
def test_a_wrong_count_is_one_sentence(value: object) -> None:
    (sentence,) = _problems({"spec": {"worker": {"rollout": {"maxSurge": value}}}})
    assert "is neither a number from 0 to 100 nor a percentage such as 25% (found " in sentence


def test_a_fraction_is_no_quantity() -> None:
    (sentence,) = _problems({"spec": {"worker": {"resources": {"limits": {"cpu": 0.5}}}}})
    assert sentence.endswith("is not a quantity (found 0.5); write one such as 500m, 2 or 16Gi")


@pytest.mark.parametrize(
    "metadata",
    [{"name": 5}, {"name": True}, {"namespace": False}, {"namespace": 0}, {"namespace": "A b"}],
)
def test_a_name_that_is_none_is_told_as_it_is(metadata: dict[str, object]) -> None:
    (sentence,) = _problems({"metadata": metadata})
    (key,) = metadata
    assert sentence.startswith(f"metadata.{key}: is not what the API server writes there (found ")


def test_a_wrong_value_in_a_list_is_named_with_its_index() -> None:
    (sentence,) = _problems({"spec": {"engine": {"env": [{"name": "A"}, {"name": "1B"}]}}})
    assert sentence.startswith("spec.engine.env[1].name: ")
    assert "1B" in sentence


@pytest.mark.parametrize(
    ("model", "end"),
    [
        (
            {"source": {"huggingFace": {"repository": "hf://org/m"}}, "cache": {"size": "1Gi"}},
            "(found hf://org/m); correct the value; the field is: Name of the repository:"
            " organisation/name.",
        ),
        (
            {"source": {"s3": {"bucket": "models"}}, "cache": {"size": "20GB"}},
            "spec.model.cache.size: is not a quantity (found 20GB); write one such as 500m, 2 or"
            " 16Gi",
        ),
        (
            {"source": {"s3": {"bucket": "models", "files": ["*.json", "a b"]}}},
            "(found a b); correct the value; the field is: Fetch only files that match one of"
            " these globs, such as *Q4_K_M.gguf; all that a model needs when absent.",
        ),
    ],
)
def test_a_value_of_another_form_is_told_what_is_meant(model: dict[str, Any], end: str) -> None:
    (sentence,) = _problems({"spec": {"model": model}})
    assert sentence.endswith(end)


def test_only_topologies_of_this_version_are_offered() -> None:
    (sentence,) = _problems({"spec": {"topology": "Both"}})
    assert sentence == (
        "spec.topology: is not a topology of this version (found Both); use Unified or Split"
    )


def test_all_problems_are_reported_at_once() -> None:
    assert len(_problems({"spec": {"replicas": -1, "paused": 3, "networkPolicy": "x"}})) == 3


def test_nulls_count_as_absent() -> None:
    service = parse(document({"spec": {}}))
    body = document({"spec": {"worker": {"gpu": {"countPerNode": 1}}}})
    body["spec"]["engine"] = None
    body["spec"]["worker"]["rollout"] = None
    parsed = parse(body)
    assert parsed.spec.engine == service.spec.engine
    assert parsed.spec.worker.rollout == service.spec.worker.rollout


def test_metadata_is_taken_over() -> None:
    body = document({"metadata": {"uid": "u-1", "generation": 7}, "spec": {"topology": "Split"}})
    service = parse(body)
    assert (service.name, service.namespace, service.uid, service.generation) == (
        "demo",
        "default",
        "u-1",
        7,
    )
    assert service.spec.topology is Topology.SPLIT


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"kind": "Service"}, "apiVersion"),
        ({"apiVersion": "serving.mizzen.dev/v2"}, "apiVersion"),
        ({"spec": None}, "spec"),
        ({"metadata": None}, "metadata.name"),
        ({"spec": "text"}, "spec"),
    ],
)
def test_objects_of_another_form_are_refused(patch: dict[str, Any], field: str) -> None:
    (sentence,) = _problems(patch)
    assert sentence.startswith(f"{field}: ")


@pytest.mark.parametrize("name", ["a b", "a/b/c", "fpga", "cpu/", "/x", "nvidia.com/-gpu"])
def test_a_resource_that_no_pod_may_ask_for_is_refused_before_anything_is_replaced(
    name: str,
) -> None:
    with pytest.raises(SpecError, match=r"spec\.worker\.resources\.limits"):
        parse(document({"spec": {"worker": {"resources": {"limits": {name: 1}}}}}))


@pytest.mark.parametrize(
    ("spec", "max_restarts"),
    [
        ({"worker": {"restart": {"maxRestarts": 3}}, "unknown": 1}, 3),
        ({"worker": {"restart": {"maxRestarts": 3, "windowSeconds": None}}}, 3),
        ({"worker": {"restart": {"maxRestarts": "many"}}}, Restart().max_restarts),
        ({"worker": {"restart": None}}, Restart().max_restarts),
        ({"worker": "big"}, Restart().max_restarts),
        ({"worker": {"restart": {"maxRestarts": 3}, "podTemplate": nested(9000)}}, 3),
        ({"worker": {"restart": nested(9000)}}, Restart().max_restarts),
        ("nothing", Restart().max_restarts),
        (None, Restart().max_restarts),
    ],
)
def test_restarts_are_read_from_a_spec_of_any_form(spec: Any, max_restarts: int) -> None:
    restart = restart_of_refused({"spec": spec})
    assert restart is not None
    assert restart.max_restarts == max_restarts


@pytest.mark.parametrize("depth", [MAX_DEPTH, 9000])
def test_a_spec_that_is_nested_too_deep_is_refused(depth: int) -> None:
    (sentence,) = _problems({"spec": {"worker": {"podTemplate": {"spec": nested(depth)}}}})
    assert sentence.startswith(f"spec: has more than {MAX_DEPTH} maps and lists within each other")


def test_a_deep_spec_that_is_not_too_deep_is_read() -> None:
    template = {"spec": {"affinity": nested(MAX_DEPTH - 10)}}
    service = parse(document({"spec": {"worker": {"podTemplate": template}}}))
    assert service.spec.worker.pod_template == template


def test_a_paused_spec_asks_for_no_restarts() -> None:
    assert restart_of_refused({"spec": {"paused": True, "worker": "big"}}) is None
