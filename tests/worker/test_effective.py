"""What is left to the machine or to the model is shown as what it comes to, and why."""

import json
import os
import struct
from pathlib import Path

import pytest

from mizzen_worker import cli


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf(file: Path, context_length: int) -> Path:
    file.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 2)
        + (_text("general.architecture") + struct.pack("<I", 8) + _text("llama"))
        + (_text("llama.context_length") + struct.pack("<II", 4, context_length))
    )
    return file


def _lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert cli.main(["show-config", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}


def test_autos_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    shown = _lines(capsys, "serve", str(_gguf(tmp_path / "tiny.Q4.gguf", 2048)))
    cores = len(os.sched_getaffinity(0))
    assert shown["--threads"] == f"{cores} (default 0: the cores of this machine)"
    assert shown["--tokenizer-workers"] == "1 (default)"
    assert shown["--dtype"] == "float32 (default auto: float32 on a CPU)"
    assert shown["--overlap"] == "off (default auto: off on a CPU)"
    assert shown["--served-model-name"] == "tiny.Q4 (default: the name of the file)"
    assert shown["--context-length"] == "2048 (default: the model's own limit)"
    assert shown["--kv-tokens"] == "16384 (default auto: 16384 on a CPU)"
    assert shown["--max-chunk-tokens"] == "512 (default auto: 512 on a CPU)"
    assert shown["--cuda-graphs"] == "off (default auto: off on a CPU)"
    assert "/mizzen/kernels (default: in the user's cache folder)" in shown["--compile-cache"]
    assert " (default auto: standard error is " in shown["--log-format"]


def test_autos_of_a_folder_on_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kernels")
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    shown = _lines(
        capsys,
        "worker",
        "--model",
        str(folder),
        "--device",
        "cuda:1",
        "--dtype",
        "auto",
        *("--data-parallel-size", "2"),
    )
    assert shown["--data-parallel-size"] == "2 (flag)"
    assert shown["--threads"].endswith("the cores of this machine, shared by 2 ranks)")
    assert shown["--dtype"] == "bfloat16 (flag auto: bfloat16 on a GPU)"
    assert shown["--overlap"] == "on (default auto: on on a GPU)"
    assert shown["--cuda-graphs"] == "on (default auto: on on a GPU)"
    assert shown["--kv-tokens"] == "- (default auto: measured on the GPU at the start)"
    assert shown["--max-running-requests"] == "256 (default auto: 256 on a GPU)"
    assert shown["--max-chunk-tokens"] == "8192 (default auto: 8192 on a GPU)"
    assert shown["--compile-cache"] == "/kernels (default: TRITON_CACHE_DIR names it)"
    assert shown["--served-model-name"] == "tiny (default: the name of the folder)"
    assert shown["--context-length"] == "512 (default: the model's own limit)"


def test_what_is_given_stays_and_what_cannot_be_told_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--served-model-name", "n", "--threads", "3", "--context-length", "9")
    shown = _lines(capsys, "serve", str(_gguf(tmp_path / "m.gguf", 64)), *given)
    assert shown["--served-model-name"] == "n (flag)"
    assert shown["--threads"] == "3 (flag)"
    assert shown["--context-length"] == "9 (flag)"
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    for model, reason in (("none", "does not exist"), ("cut.gguf", "the file ends early")):
        shown = _lines(capsys, "serve", str(tmp_path / model))
        assert shown["--context-length"].startswith("- (default: the model's own; ")
        assert reason in shown["--context-length"]
