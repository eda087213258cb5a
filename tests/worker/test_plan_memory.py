"""What a model takes of a GPU, told without one, for shapes whose sizes are known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.benchmark_models import write_config

from mizzen_worker import cli


def _folder(folder: Path, name: str) -> Path:
    write_config(folder, name)
    return folder


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    status = cli.main(["plan-memory", *arguments, "--json"])
    found: dict[str, int] = json.loads(capsys.readouterr().out)
    assert (status == 0) == (found["kv_tokens"] > 0)
    return found


@pytest.mark.parametrize(
    ("name", "billions", "kv_token_bytes"),
    [("qwen06b", 0.596, 114_688), ("llama8b", 8.03, 131_072), ("qwen30b-a3b", 30.53, 98_304)],
)
def test_weights_and_kv_of_known_models(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    billions: float,
    kv_token_bytes: int,
) -> None:
    found = _plan(capsys, str(_folder(tmp_path, name)), "--gpu-memory", "139.8")
    assert found["weights_bytes"] / 2e9 == pytest.approx(billions, rel=0.001)
    assert found["kv_token_bytes"] == kv_token_bytes
    left = 0.9 * found["gpu_memory_bytes"] - found["weights_bytes"] - found["step_bytes"]
    left -= found["graphs_bytes"] + found["cuda_bytes"]
    assert found["left_bytes"] == pytest.approx(left, abs=2)
    assert found["kv_tokens"] == (int(left) // (64 * kv_token_bytes) - 1) * 64


def test_what_does_not_fit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path, "llama8b")
    assert _plan(capsys, str(folder), "--gpu-memory", "16")["kv_tokens"] == 0
    assert cli.main(["plan-memory", str(folder), "--gpu-memory", "16"]) == 1
    assert "it does not fit" in capsys.readouterr().out
    assert cli.main(["plan-memory", str(folder / "config.json"), "--gpu-memory", "80"]) == 0
    text = capsys.readouterr().out
    assert "KV memory        128.0 KiB  for one position" in text
    assert "requests of the whole context" in text
    assert "a plan only" not in text
    several = ["--tensor-parallel-size", "2"]
    assert cli.main(["plan-memory", str(folder), "--gpu-memory", "80", *several]) == 0
    assert "a plan only: a start refuses" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "--gpu-memory", "8"], "nowhere: holds no config.json; give a model folder"),
        (["m", "--gpu-memory", "x"], "'x' is not a number of GiB above 0"),
        (["m"], "the following arguments are required: --gpu-memory"),
        (["m", "--gpu-memory", "1e300"], "'1e300' is not a number of GiB above 0, 1e+06 at most"),
        (["m", "--gpu-memory", "nan"], "'nan' is not a number of GiB above 0"),
        (["m", "--gpu-memory", "8", "--memory-fraction", "2"], "'2' is not a share above 0, 1 at"),
        (["m", "--gpu-memory", "8", "--memory-fraction", "0"], "'0' is not a share above 0"),
        (
            ["m", "--gpu-memory", "8", "--page-size", "0"],
            "'0' is not a whole number from 1 to 1024",
        ),
        (
            ["m", "--gpu-memory", "8", "--page-size", "9" * 5000],
            "' is not a whole number from 1 to",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan-memory", *arguments]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a":' * 100_000])
def test_damaged_config_is_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert cli.main(["plan-memory", str(tmp_path), "--gpu-memory", "80"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"mizzen plan-memory: {tmp_path / 'config.json'}: ")
    assert told.count("\n") == 1


def test_what_a_start_refuses_has_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(_folder(tmp_path, "qwen30b-a3b"))
    assert cli.main(["plan-memory", folder, "--gpu-memory", "80", "--quantization", "fp8"]) == 2
    assert "fp8 does not serve mixtures of experts; leave it out" in capsys.readouterr().err


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from mizzen_worker.cli import main;"
        f"main(['plan-memory', {str(_folder(tmp_path, 'qwen06b'))!r}, '--gpu-memory', '80']);"
        "print(sorted({'torch', 'triton', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert done.stdout.endswith("[]\n")


def test_fp8_keys_and_values_take_half(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(_folder(tmp_path, "llama8b"))
    exact, packed = (
        _plan(capsys, folder, "--gpu-memory", "80", "--kv-dtype", kind) for kind in ("auto", "fp8")
    )
    assert 2 * packed["kv_token_bytes"] == exact["kv_token_bytes"]
    # Of both, a page is the sink, and what is no whole page is left over.
    assert packed["kv_tokens"] == pytest.approx(2 * exact["kv_tokens"], abs=2 * 64)


@pytest.mark.parametrize(
    ("name", "size", "share_of_kv"),
    [("llama8b", 2, 2), ("llama8b", 16, 8), ("qwen30b-a3b", 4, 4), ("qwen06b", 8, 8)],
)
def test_a_rank_takes_its_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, size: int, share_of_kv: int
) -> None:
    """Norms and routers are whole on every rank, and KV heads where there are fewer than ranks."""
    folder = str(_folder(tmp_path, name))
    whole, rank = (
        _plan(capsys, folder, "--gpu-memory", "139.8", "--tensor-parallel-size", str(ranks))
        for ranks in (1, size)
    )
    assert rank["tensor_parallel_size"] == size
    assert rank["kv_token_bytes"] * share_of_kv == whole["kv_token_bytes"]
    shared_heads = whole["weights_bytes"] * 0.08 if share_of_kv < size else 0
    least = whole["weights_bytes"] / size
    assert least <= rank["weights_bytes"] < least * 1.02 + shared_heads
    assert rank["step_bytes"] < whole["step_bytes"]
    assert rank["kv_tokens"] > whole["kv_tokens"] * share_of_kv


def test_ranks_are_told_of_and_what_they_cannot_divide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(_folder(tmp_path, "llama8b"))
    assert (
        cli.main(["plan-memory", folder, "--gpu-memory", "80", "--tensor-parallel-size", "2"]) == 0
    )
    assert capsys.readouterr().out.startswith("each of 2 ranks, on a GPU of its own:\nweights")
    assert (
        cli.main(["plan-memory", folder, "--gpu-memory", "80", "--tensor-parallel-size", "3"]) == 2
    )
    assert capsys.readouterr().err == (
        "mizzen plan-memory: --tensor-parallel-size: 3 does not divide the model's 32 attention "
        "heads; use 1 or 2 or 4 or 8 or 16 or 32\n"
    )
