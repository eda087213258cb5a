"""The command: fast help, verbs of any package, clear refusals, no torch in front processes."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mizzen_worker import __version__, cli

ROOT = Path(__file__).resolve().parents[2]


def test_own_verbs_equal_the_registered_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"]["mizzen.verbs"]
    assert {k: v for k, v in registered.items() if v.startswith("mizzen_worker")} == cli.OWN_VERBS
    assert project["scripts"]["mizzen"] == "mizzen_worker.cli:main"


def test_help_names_each_verb_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in cli.OWN_VERBS:
        assert f"  {verb}" in text
    assert "Serve a model on this machine, everything in one place" in text


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--version"], 0, f"mizzen {__version__}"),
        (["serv"], 2, "serv is no verb; did you mean serve?"),
        (["--verison"], 2, "--verison is no flag; did you mean --version?"),
        (["qqqqq"], 2, "mizzen --help lists them"),
        ([], 2, "usage: mizzen VERB"),
        (["serve"], 2, "mizzen serve: --model is missing"),
        (["serve", "/nowhere"], 2, "/nowhere does not exist"),
        (["serve", "/nowhere"], 2, "`make setup` of a source checkout puts a small one"),
        (["worker", "--model", "/", "--listen", "tcp://0.0.0.0:1"], 2, "without protection"),
        (["show-config"], 2, "usage: mizzen show-config"),
        (["show-config", "serve", "m"], 0, "--kv-tokens"),
        (["completion", "csh"], 2, "usage: mizzen completion bash|zsh|fish"),
        (["completion", "bash"], 0, "complete -o filenames -F _mizzen mizzen"),
        (["drain", "--admin-port", "1"], 1, "is anything served here?"),
    ],
)
def test_command_answers(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, sentence: str
) -> None:
    assert cli.main(arguments) == status
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err


@pytest.mark.parametrize("verb", ["completion", "show-config"])
def test_help_that_was_asked_for_is_no_error(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert cli.main([verb, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: mizzen {verb} ")
    assert captured.err == ""


def test_verb_of_a_missing_package_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint(name="gone", value="no_such_package.x:y", group=cli.GROUP)
    assert cli.summary(entry) == "(not installed here)"
    monkeypatch.setattr(cli, "find_verbs", lambda: {"gone": entry})
    assert cli.main(["gone"]) == 1
    assert "needs the package no_such_package" in capsys.readouterr().err


@pytest.mark.parametrize(
    "module",
    [
        "mizzen_worker.cli",
        "mizzen_worker.verbs",
        "mizzen_worker.launch",
        "mizzen_worker.http_api.process",
        "mizzen_worker.detokenizer.process",
    ],
)
def test_front_processes_never_import_torch(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "found = {'torch', 'triton', 'transformers'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONPATH": f"{ROOT / 'worker'}"},
    )


def test_a_rank_reads_its_settings_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys, mizzen_worker.scheduler.process\n"
        "found = {'torch', 'triton', 'numpy', 'zmq'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{ROOT / 'worker'}"}
    )


def test_launcher_does_without_the_web_framework_and_the_sockets_library() -> None:
    code = (
        "import sys, mizzen_worker.launch\n"
        "found = {'fastapi', 'starlette', 'jinja2', 'pydantic'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{ROOT / 'worker'}"}
    )


def test_a_reader_that_has_enough_is_no_failure_to_talk_about() -> None:
    code = "import sys; from mizzen_worker import cli; sys.exit(cli.main(['completion', 'zsh']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
