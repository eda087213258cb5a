"""``mizzen plan`` prints objects or problems and says so in its exit code."""

import io
from pathlib import Path

import pytest
import yaml
from tests.operator.spec.rule_examples import document

from mizzen_operator import cli

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
    assert kinds[0] == "ServiceAccount"
    assert {"StatefulSet", "Deployment", "Service", "NetworkPolicy"} <= set(kinds)
    assert "# Secret demo-curve with new CURVE keys" in out


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
    "text", ["2020-01-01: x", "a: &a [*a]", "? [1]\n: x"], ids=["key", "cycle", "list-as-key"]
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


def test_render_crds_writes_both_files(tmp_path: Path) -> None:
    assert cli.render_crds_verb(["--output", str(tmp_path)]) == 0
    written = (tmp_path / cli.CRD_PATH).read_text(encoding="utf-8")
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
