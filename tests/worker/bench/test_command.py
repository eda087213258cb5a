"""``mizzen bench`` end to end on a tiny model on the CPU: rows, file, messages."""

import asyncio
import contextlib
import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.benchmark_models import facts_of
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.bench import command
from mizzen_worker.bench.command import run
from mizzen_worker.bench.device_use import DeviceUse
from mizzen_worker.bench.measures import BenchSizes, Row
from mizzen_worker.bench.report import write_json
from mizzen_worker.bench.shapes import SHAPES

QUICK = [
    *("--kv-tokens", "8192", "--requests", "3", "--batches", "1", "2", "--prompt", "20"),
    *("--new-tokens", "4", "--prefills", "2", "--prefill-length", "30", "--groups", "1"),
    *("--rounds", "1", "--threads", "1"),
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "tiny", "qwen3", vocab_size=10_016, max_position_embeddings=4096)
    return tmp_path / "tiny"


def rows_of(tiny: Path, workloads: list[str]) -> dict[str, list[dict[str, object]]]:
    target = tiny.parent / "out" / "numbers.json"
    assert run([*workloads, "--model", str(tiny), *QUICK, "--json", str(target)]) == 0
    rows = json.loads(target.read_text())["workloads"]
    assert list(rows) == workloads
    return rows


def test_every_workload_gives_rows_and_a_file(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(tiny, ["offline", "decode", "prefill"])
    assert rows["offline"][0]["requests"] == 3
    assert [row["batch"] for row in rows["decode"]] == [1, 2]
    assert rows["prefill"][0]["input tok/s"] > 0
    assert "output tok/s" in capsys.readouterr().out


@pytest.mark.slow
def test_shared_prefixes_are_computed_once_in_either_order(tiny: Path) -> None:
    rows = rows_of(tiny, ["prefix"])
    assert [row["order"] for row in rows["prefix"]] == ["groups", "shuffled"]
    for row in rows["prefix"]:
        assert row["hit rate"] == pytest.approx(row["best hit rate"], abs=0.01)


def test_wrong_arguments_are_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["offline", "--model", "no-such-shape"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("mizzen bench: no-such-shape: no such model")
    assert run(["ofline", "--model", "qwen06b"]) == 2
    assert "invalid choice: 'ofline'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["offline", "--requests", "0"], "--requests: '0' cannot be used; it must be 1 to"),
        (["decode", "--batches", "1", "-2"], "--batches: '-2' cannot be used; it must be 1 to"),
        (["decode", "--batches", "65"], "--batches: 65 is more than run at once; raise"),
        (["decode", "--new-tokens", "1"], "--new-tokens: '1' cannot be used; it must be 2 to"),
        (["decode", "--rounds", "0"], "--rounds: '0' cannot be used"),
        (["prefix", "--groups", "0"], "--groups: '0' cannot be used"),
        (["offline", "--temperature", "nan"], "--temperature: 'nan' cannot be used"),
        (["serving", "--rate", "nan"], "--rate: 'nan' cannot be used; it must be a number above 0"),
        (["serving", "--rate", "0"], "--rate: '0' cannot be used"),
        (["serving", "--url", "host:1"], "--url: 'host:1' cannot be used; it must be http://"),
        (["decode", "--rate", "3"], "--rate: 3.0 is for serving alone; leave it out"),
        (["serving", "--rounds", "5"], "--rounds: 5 is for other workloads; leave it out"),
        (["serving", "--batches", "1", "2"], "--batches: [1, 2] is for other workloads"),
        (["offline", "--url", "http://a:1"], "--url: http://a:1 is for serving alone"),
        (["decode", "--json", "/"], "--json: '/' cannot be used; it is a folder"),
        (["decode", "--json", "/proc/version/x"], "/proc/version cannot be written; give another"),
        (["decode", "--data-parallel-size", "2"], "--data-parallel-size: 2 ranks do not run in"),
        (["decode", "--tensor-parallel-size", "2"], "--tensor-parallel-size: 2 ranks do not run"),
        (["decode", "--cuda-graphs", "on"], "--cuda-graphs: 'on' needs a GPU; leave it to auto"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_loaded(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--model", "llama8b"]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (["--prompt", "9000"], "9000 prompt ids and 4 new tokens are more than 4096 positions"),
        (["--new-tokens", "9000"], "20 prompt ids and 9000 new tokens are more than 4096"),
    ],
)
def test_what_cannot_fit_is_told_before_it_runs(
    tiny: Path, sizes: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", "--model", str(tiny), *QUICK, *sizes]) == 1
    assert sentence in capsys.readouterr().err


def test_a_small_vocabulary_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path, "qwen3")
    assert run(["decode", "--model", str(tmp_path), *QUICK]) == 1
    assert "the model has 199 tokens; time a model with a larger" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*QUICK, "--json", "/proc/none/numbers.json"]
    assert run(["decode", "--model", str(tiny), *given]) == 1
    told = capsys.readouterr().err
    assert "--json: " in told
    assert "Traceback" not in told


def test_an_interrupted_run_keeps_the_workloads_that_ended(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(engine: object, sizes: object) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setitem(command.MEASURES, "decode", interrupted)
    target = tiny.parent / "numbers.json"
    given = ["prefill", "decode", "--model", str(tiny), *QUICK, "--json", str(target)]
    assert run(given) == 130
    assert list(json.loads(target.read_text())["workloads"]) == ["prefill"]


def test_an_interrupt_is_heard_where_cancellations_are_not() -> None:
    async def deaf() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(5)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), command.ended_by_signals():
        asyncio.run(deaf())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_step_of_too_few_tokens_is_not_told() -> None:
    walls = iter((1.0, 2.0, 1.5))
    engine = SimpleNamespace(
        run=lambda *_, **__: SimpleNamespace(
            wall_s=next(walls), use=DeviceUse(elapsed_s=1.0, power=None, experts=None)
        )
    )
    sizes = BenchSizes(batches=(1,), num_prompt=1, num_new=2, rounds=1)
    (row,) = command.MEASURES["decode"](engine, sizes)
    assert math.isnan(row["step ms"])
    assert math.isnan(row["decode tok/s"])


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    write_json(file, {"rows": [{"rate /s": math.inf, "gap": math.nan, "wall s": 1.5}]})
    assert json.loads(file.read_text()) == {"rows": [{"rate /s": None, "gap": None, "wall s": 1.5}]}


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_are_readable_as_models(name: str) -> None:
    assert facts_of(name).shape.num_layers == SHAPES[name]["num_hidden_layers"]
