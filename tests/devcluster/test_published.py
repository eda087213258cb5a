"""A published file is fetched once, and only as it is pinned."""

import json
import os
from pathlib import Path

import pytest
from tests.devcluster.binaries import BuildError
from tests.devcluster.folders import Folders
from tests.devcluster.published import PublishedFile, published_text

FILE = PublishedFile(module="example.com/m", version="v1.0.0", sum="h1:right=", path="a/b.yaml")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a go program that only pretends brings; tests write its answer."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "version) echo go version go1.99.0 linux/amd64 ;;\n"
        f"*) cat {tmp_path}/answer; exit $(cat {tmp_path}/status) ;;\n"
        "esac\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    folder = tmp_path / "module"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "b.yaml").write_text("kind: Thing\n")
    return folder


def answer(module: Path, status: int = 0, **fields: str) -> None:
    (module.parent / "answer").write_text(json.dumps(fields))
    (module.parent / "status").write_text(str(status))


def test_a_file_is_fetched_once(module: Path, tmp_path: Path) -> None:
    folders = Folders(root=tmp_path / "cache")
    answer(module, Sum=FILE.sum, Dir=str(module))
    assert published_text(folders, FILE) == "kind: Thing\n"
    answer(module, status=1, Error="there is no network")
    assert published_text(folders, FILE) == "kind: Thing\n"


@pytest.mark.parametrize(
    ("status", "fields", "words"),
    [
        (0, {"Sum": "h1:other=", "Dir": "."}, "has the hash h1:other=, pinned is h1:right="),
        (1, {"Error": "no such version"}, "could not be fetched: .*no such version"),
    ],
)
def test_what_is_not_as_pinned_is_refused(
    module: Path, tmp_path: Path, status: int, fields: dict[str, str], words: str
) -> None:
    answer(module, status=status, **fields)
    with pytest.raises(BuildError, match=words):
        published_text(Folders(root=tmp_path / "cache"), FILE)
    assert list((tmp_path / "cache" / "published").iterdir()) == []
