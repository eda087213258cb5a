"""What is in crds/samples is accepted by the model and the rules, and plans without problems."""

from pathlib import Path

import pytest
import yaml

from mizzen_operator.cli import plan_verb
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.validate import validate

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "crds" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["kind"] == "InferenceService":
            assert validate(parse(document)) == []
    assert plan_verb(["-f", str(path)]) == 0
    assert "kind: StatefulSet" in capsys.readouterr().out


def test_there_are_samples_of_both_topologies() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SAMPLES]
    assert any("topology: Split" in text for text in texts)
    assert any("topology:" not in text for text in texts)
