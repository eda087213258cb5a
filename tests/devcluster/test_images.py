"""Tests of what goes into an image's name, and of cutting the lock; nothing is built here."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.devcluster.folders import REPOSITORY
from tests.devcluster.images import (
    CONTEXT,
    FRONTEND,
    TARGETS,
    WORKER,
    ImageBuilder,
    Target,
    context_files,
    source_key,
    tools_key,
)
from tests.devcluster.images_load import chain_ids
from tests.devcluster.images_store import Image, ImageStore, Layer, choose_older

Cut = Callable[[str, str], str]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a copy of everything that a build sees."""
    for file in (
        *context_files(REPOSITORY),
        *(REPOSITORY / name for name in ("Dockerfile.operator", "Dockerfile.worker")),
    ):
        copy = tmp_path / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def test_the_context_is_what_dockerignore_lets_through() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(CONTEXT)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_default_base_is_from_no_registry_in_particular(target: Target) -> None:
    lines = (REPOSITORY / target.dockerfile).read_text().splitlines()
    images = [line for line in lines if line.startswith(("ARG BASE=", "FROM "))]
    assert len(images) > 3
    assert not [line for line in images if "/" in line]


def test_the_same_tree_has_the_same_key(tree: Path) -> None:
    assert source_key(tree, WORKER, "b") == source_key(REPOSITORY, WORKER, "b")


@pytest.mark.parametrize(
    "change", ["worker/mizzen_worker/new.py", "pyproject.toml", ".ci/setup.lock"]
)
def test_any_change_of_the_tree_gives_another_key(tree: Path, change: str) -> None:
    before = source_key(tree, WORKER, "b")
    with (tree / change).open("a") as file:
        file.write("\n# changed\n")
    assert source_key(tree, WORKER, "b") != before


def test_generated_files_do_not_change_the_key(tree: Path) -> None:
    before = source_key(tree, WORKER, "b")
    for name in ("worker/mizzen_worker/__pycache__/x.pyc", "worker/x.egg-info/PKG-INFO"):
        (tree / name).parent.mkdir()
        (tree / name).write_text("generated")
    assert source_key(tree, WORKER, "b") == before


def test_base_and_target_are_part_of_the_key() -> None:
    keys = {
        source_key(REPOSITORY, WORKER, "b"),
        source_key(REPOSITORY, WORKER, "b2"),
        source_key(REPOSITORY, FRONTEND, "b"),
    }
    assert len(keys) == 3


def test_the_tools_are_built_anew_for_another_lock_of_them_only(tree: Path) -> None:
    before = tools_key(tree, "b")
    (tree / "pyproject.toml").write_text("changed")
    assert tools_key(tree, "b") == before
    (tree / ".ci" / "setup.lock").write_text("changed")
    assert tools_key(tree, "b") != before


def test_a_chain_names_a_layer_together_with_those_below() -> None:
    a, b = "sha256:" + "a" * 64, "sha256:" + "b" * 64

    def image(*diff_ids: str) -> Image:
        layers = tuple(Layer(diff_id=diff_id, folder=Path("/none")) for diff_id in diff_ids)
        return Image(name="n:1", manifest=b"{}", config=b"{}", layers=layers)

    assert chain_ids(image(a)) == (a,)
    # Computed by hand: printf 'sha256:aaa... sha256:bbb...' | sha256sum
    expected = subprocess.run(
        ["sha256sum"], input=f"{a} {b}", capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert chain_ids(image(a, b)) == (a, f"sha256:{expected}")
    assert chain_ids(image(b, b))[1] != chain_ids(image(a, b))[1]


def test_three_versions_are_kept_and_two_sets_of_big_layers() -> None:
    same = [(f"i:{number}", "deps") for number in range(5)]
    assert choose_older(same) == ["i:3", "i:4"]
    assert choose_older([("i:0", "a"), ("i:1", "b"), ("i:2", "c"), ("i:3", "a")]) == ["i:2"]
    assert choose_older([]) == []


class TestCutOfTheLock:
    """`.ci/image_requirements.py`, which runs inside the builds."""

    @pytest.fixture
    def cut(self) -> Cut:
        path = REPOSITORY / ".ci" / "image_requirements.py"
        spec = importlib.util.spec_from_file_location("image_requirements", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cut: Cut = module.cut
        return cut

    LOCK = (
        "a-b==1.0 \\\n    --hash=sha256:1\n"
        "numpy==2.1 ; python_version < '3.12' \\\n    --hash=sha256:2\n"
        "numpy==2.5 ; python_version >= '3.12' \\\n    --hash=sha256:3\n"
        "torch==2.15 \\\n    --hash=sha256:4\n"
    )

    def test_keeps_versions_hashes_and_every_variant(self, cut: Cut) -> None:
        kept = cut(self.LOCK, "numpy==2.1\nA_B==1.0\n")
        assert kept == self.LOCK[: self.LOCK.index("torch")]

    def test_what_the_lock_lacks_is_an_error(self, cut: Cut) -> None:
        with pytest.raises(SystemExit, match="no entry for other: run `make lock`"):
            cut(self.LOCK, "other==1\n")

    def test_the_real_lock_has_every_requirement_of_each_extra(self, cut: Cut) -> None:
        lock = (REPOSITORY / "requirements.lock").read_text()
        assert "torch==" in cut(lock, "torch==0\n")
        assert "torch" not in cut(lock, "numpy==0\n")


def test_the_script_reads_the_resolution_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(TestCutOfTheLock.LOCK)
    printed = subprocess.run(
        [sys.executable, REPOSITORY / ".ci" / "image_requirements.py", tmp_path / "lock"],
        input="torch==2.15\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == "torch==2.15 \\\n    --hash=sha256:4\n"


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ({"localhost/mizzen/frontend:1"}, "it is not in the store"),
        ({"localhost/mizzen/worker:1"}, "its sources changed"),
    ],
)
def test_a_build_says_why(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: set[str],
    reason: str,
) -> None:
    class StopError(Exception):
        """Ends before anything is built."""

    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        raise StopError

    store = ImageStore(tmp_path / "store")
    monkeypatch.setattr(ImageStore, "names", lambda _: there)
    builder = ImageBuilder(store=store, uv_cache=tmp_path / "uv", repository=tree)
    with pytest.raises(StopError):
        builder.build(WORKER, say)
    assert said == [f"note: worker is built: {reason}"]
