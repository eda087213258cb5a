"""``mizzen bench`` end to end on a tiny model on the CPU: rows, file, messages."""

import json
from pathlib import Path

import pytest
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.bench.command import run
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts

QUICK = [
    *("--kv-tokens", "8192", "--requests", "3", "--batches", "1", "2", "--prompt", "20"),
    *("--new-tokens", "4", "--prefills", "2", "--prefill-length", "30", "--groups", "1"),
    *("--rounds", "1"),
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "tiny", "qwen3", vocab_size=10_016, max_position_embeddings=4096)
    return tmp_path / "tiny"


def test_every_workload_gives_rows_and_a_file(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "numbers.json"
    workloads = ["offline", "decode", "prefill", "prefix"]
    status = run([*workloads, "--model", str(tiny), *QUICK, "--json", str(target)])
    assert status == 0
    document = json.loads(target.read_text())
    rows = document["workloads"]
    assert list(rows) == workloads
    assert rows["offline"][0]["requests"] == 3
    assert [row["batch"] for row in rows["decode"]] == [1, 2]
    assert rows["prefill"][0]["input tok/s"] > 0
    assert [row["order"] for row in rows["prefix"]] == ["groups", "shuffled"]
    for row in rows["prefix"]:
        assert row["hit rate"] == pytest.approx(row["best hit rate"], abs=0.01)
    assert "output tok/s" in capsys.readouterr().out


def test_wrong_arguments_are_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["offline", "--model", "no-such-shape"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("mizzen bench: no-such-shape: no such model")
    assert run(["ofline", "--model", "qwen06b"]) == 1
    assert "invalid choice: 'ofline'" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_are_readable_as_models(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(SHAPES[name])))
    facts = read_folder_facts(tmp_path, has_weights=False)
    assert facts.shape.num_layers == SHAPES[name]["num_hidden_layers"]
