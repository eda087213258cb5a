"""``mizzen plan`` prints objects or problems and says so in its exit code."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.planner.model_facts import LLAMA8B
from tests.operator.spec.rule_examples import document

from mizzen_operator import cli
from mizzen_operator.render import preflight

GOOD = yaml.safe_dump(document({"spec": {"topology": "Split"}}))
BAD = yaml.safe_dump(
    document({"metadata": {"name": "bad"}, "spec": {"tokenizer": {}, "prefill": {"replicas": 1}}})
)
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"


def _file(tmp_path: Path, *texts: str) -> str:
    path = tmp_path / "service.yaml"
    path.write_text("---\n".join(texts), encoding="utf-8")
    return str(path)


def test_objects_are_printed_as_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, GOOD)]) == 0
    out = capsys.readouterr().out
    kinds = [item["kind"] for item in yaml.safe_load_all(out) if item]
    assert kinds[:2] == ["ControllerRevision", "InferenceRoleScaler"]
    assert {"StatefulSet", "Deployment", "Service", "NetworkPolicy"} <= set(kinds)
    assert "# Secret demo-curve with new CURVE keys" in out


def test_a_plan_shows_the_job_and_what_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {
        "source": {"pvc": None, "huggingFace": {"repository": "org/model"}},
        "cache": {"size": "1Gi"},
    }
    text = yaml.safe_dump(document({"spec": {"model": model}}))
    assert cli.plan_verb(["-f", _file(tmp_path, text)]) == 0
    out = capsys.readouterr().out
    kinds = [item["kind"] for item in yaml.safe_load_all(out) if item]
    assert {"PersistentVolumeClaim", "Job", "StatefulSet"} <= set(kinds)
    assert "# weights: a Job fetches hf://org/model onto claim demo-weights-" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "mizzen plan: use -f FILE"),
        (["a.yaml"], "mizzen plan: use -f a.yaml"),
        (["-f", "a.yaml", "b.yaml"], "mizzen plan: use -f FILE (once"),
    ],
)
def test_a_file_that_is_not_named_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(arguments) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_ranks_are_shown_per_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for parallelism, line in (
        ({"tensor": 4, "nodes": 2}, "# ranks of each group: 0, 1 in pod 0 (leader); 2, 3 in pod 1"),
        ({"tensor": 2}, "# ranks of each group: 0, 1 in pod 0 (leader)"),
    ):
        spec = {"topology": "Split", "replicas": 0, "worker": {"parallelism": parallelism}}
        assert cli.plan_verb(["-f", _file(tmp_path, yaml.safe_dump(document({"spec": spec})))]) == 0
        assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("topology", "args", "warnings"),
    [
        ("Split", ["--log-level", "debug", "--max-running-requests=8", "text"], []),
        ("Split", ["--tokenizer-workers=2"], ["mizzen worker of this version has no --tok"]),
        ("Unified", ["--tokenizer-workers=2"], []),
        ("Unified", ["--kv-token", "9"], ["has no --kv-token; did you mean spec.engine.kvTokens?"]),
        ("Unified", ["--overlp=off"], ["has no --overlp; did you mean --overlap?"]),
    ],
)
def test_arguments_that_no_worker_starts_with_are_told(
    topology: str,
    args: list[str],
    warnings: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = yaml.safe_dump(document({"spec": {"topology": topology, "engine": {"args": args}}}))
    assert cli.plan_verb(["-f", _file(tmp_path, text)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(lines) == len(warnings)
    assert all(part in line for part, line in zip(warnings, lines, strict=True))


def test_a_key_that_is_there_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{GOOD}metadata: {{name: again}}\n"
    assert cli.plan_verb(["-f", _file(tmp_path, text)]) != 0
    assert "has the key metadata twice" in capsys.readouterr().err


def test_a_pod_template_is_shown_merged_or_told_where_it_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(**spec: Any) -> int:
        worker = {"podTemplate": {"spec": spec}}
        return cli.plan_verb(
            ["-f", _file(tmp_path, yaml.safe_dump(document({"spec": {"worker": worker}})))]
        )

    assert planned(priorityClassName="high", containers=[{"name": "side", "image": "i"}]) == 0
    objects = yaml.safe_load_all(capsys.readouterr().out)
    (spec,) = (
        item["spec"]["template"]["spec"]
        for item in objects
        if item and item["kind"] == "StatefulSet"
    )
    assert spec["priorityClassName"] == "high"
    assert [item["name"] for item in spec["containers"]] == ["mizzen", "side"]
    assert planned(hostNetwork=True) == 1
    assert (
        "InvalidPodTemplate: spec.worker.podTemplate.spec.hostNetwork: may not be set by a pod "
        "template (found true); remove it"
    ) in capsys.readouterr().err


def test_a_fault_of_the_wiring_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "wiring_faults", lambda *_: ["ranks do not meet"])
    worker = {"parallelism": {"tensor": 2, "nodes": 2}}
    text = yaml.safe_dump(document({"spec": {"topology": "Split", "worker": worker}}))
    assert cli.plan_verb(["-f", _file(tmp_path, text)]) == 1
    assert "WiringFault: spec.worker.parallelism: ranks do not meet" in capsys.readouterr().err


def _on_gpu(**gpu: object) -> str:
    spec = {"worker": {"gpu": {"countPerNode": 1, **gpu}}, "engine": {"kvTokens": 131_072}}
    return yaml.safe_dump(document({"spec": spec}))


def test_the_sum_is_shown_where_sizes_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "manifest.json"
    facts.write_text(json.dumps({"version": 1, "facts": LLAMA8B}))
    text = _file(tmp_path, _on_gpu(**{"class": "ours"}))
    small, large = (["--gpu-classes", f"ours={size}"] for size in ("24Gi", "80Gi"))
    assert cli.plan_verb(["-f", text, "--facts", str(facts), *small]) == 1
    told = capsys.readouterr()
    assert "# memory: weights 14.96 GiB + CUDA 0.60 GiB" in told.out
    assert "InsufficientMemory: weights 14.96 GiB + CUDA 0.60 GiB" in told.err
    assert cli.plan_verb(["-f", text, "--facts", str(facts), *large]) == 0
    assert "; room for 440640 tokens of KV memory" in capsys.readouterr().out
    facts.write_text(json.dumps(LLAMA8B))
    assert cli.plan_verb(["-f", text, "--facts", str(facts), *large]) == 0
    assert "; room for 440640 tokens of KV memory" in capsys.readouterr().out


def test_without_sizes_nothing_is_reckoned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, _on_gpu(memory="1Gi"))]) == 0
    assert "# memory: not known: the model's sizes are not given; --facts FILE" in (
        capsys.readouterr().out
    )
    assert cli.plan_verb(["-f", _file(tmp_path, _on_gpu())]) == 0
    assert "# memory" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "{}", "[]", '{"facts": null}', '{"numLayers": 1}'])
def test_a_file_without_sizes_is_one_sentence(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "facts.json"
    if content is not None:
        facts.write_text(content)
    arguments = ["-f", _file(tmp_path, GOOD), "--facts", str(facts)]
    assert cli.plan_verb(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"mizzen plan: --facts: cannot read {facts}: ")
    assert err.count("\n") == 1


def test_a_class_of_another_form_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, GOOD), "--gpu-classes", "ours=lots"]) == 2
    assert capsys.readouterr().err.startswith(
        "mizzen plan: --gpu-classes: 'ours=lots' is no class of GPUs: write NAME=MEMORY"
    )


@pytest.mark.parametrize("text", ["12e3", "1e5", "012", "1.5", "0x1f", "-1", "+1", "1_000", "."])
def test_texts_that_look_like_numbers_are_quoted(text: str) -> None:
    assert cli.as_yaml({"a": text}) == f"a: '{text}'\n"


def test_images_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--worker-image", "w:9", "--frontend-image", "f:9"]
    assert cli.plan_verb(["-f", _file(tmp_path, GOOD), *arguments]) == 0
    out = capsys.readouterr().out
    assert "image: w:9" in out
    assert "image: f:9" in out


def test_problems_are_named_with_field_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, BAD)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert "document 1: InvalidSpec: spec.tokenizer: tokenizer pods exist only" in first
    assert "NotAvailable: spec.prefill: prefill is not available in this version" in second


def test_one_bad_document_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, OTHER, BAD, GOOD)]) == 1
    captured = capsys.readouterr()
    assert "document 1: passed over ConfigMap" in captured.err
    assert "document 2: InvalidSpec" in captured.err
    assert "name: demo-tokenizer" in captured.out


def test_the_input_can_be_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert cli.plan_verb(["-f", "-"]) == 0
    assert "kind: Deployment" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["a: [", "- 1\n", OTHER, ""])
def test_a_file_without_a_service_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, text)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("mizzen plan: ")


@pytest.mark.parametrize(
    "text",
    ["2020-01-01: x", "a: &a [*a]", "? [1]\n: x", f"a: {'[' * 5000}{']' * 5000}"],
    ids=["key", "cycle", "list-as-key", "deep"],
)
def test_yaml_that_json_cannot_hold_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.plan_verb(["-f", _file(tmp_path, f"{GOOD}{text}\n")]) == 2
    assert "mizzen plan: cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["namespace", "uid", "generation"])
def test_metadata_of_a_wrong_type_is_named(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = yaml.safe_dump(document({"metadata": {"name": "demo", key: [1]}}))
    assert cli.plan_verb(["-f", _file(tmp_path, bad)]) == 1
    assert f"metadata.{key}: is not what" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.plan_verb(["-f", "/nowhere.yaml"]) == 2
    assert "/nowhere.yaml" in capsys.readouterr().err


def test_render_crds_writes_all_files(tmp_path: Path) -> None:
    assert cli.render_crds_verb(["--output", str(tmp_path)]) == 0
    for path in (cli.CRD_PATH, cli.SCALER_CRD_PATH):
        written = (tmp_path / path).read_text(encoding="utf-8")
        assert yaml.safe_load(written)["kind"] == "CustomResourceDefinition"
    assert "`spec.replicas`" in (tmp_path / cli.REFERENCE_PATH).read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crds").write_text("a file", encoding="utf-8")
    assert cli.render_crds_verb(["--output", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_verb_that_does_not_exist_is_answered_with_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["deploy"]) == 2
    assert "plan,render-crds" in capsys.readouterr().err
