"""Which files of a source are fetched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.fetch.listing import (
    RemoteFile,
    choose_files,
    choose_paths,
    model_root,
    require_sound_path,
)

FOLDER = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("paths", "allow", "chosen"),
    [
        (FOLDER, [], FOLDER),
        ([*FOLDER, "README.md", "x.py", "a.bin", "a.onnx"], [], FOLDER),
        ([*FOLDER, "m.gguf", "consolidated.00.safetensors"], [], FOLDER),
        ([*FOLDER, "m.gguf"], ["*.gguf"], ["m.gguf"]),
        (["a.gguf", "b.gguf"], ["a*"], ["a.gguf"]),
        (["sub/a.gguf", "sub/tokenizer.model"], [], ["sub/a.gguf", "sub/tokenizer.model"]),
        (["A.SAFETENSORS", "chat_template.jinja"], [], ["A.SAFETENSORS", "chat_template.jinja"]),
    ],
)
def test_chosen(paths: list[str], allow: list[str], chosen: list[str]) -> None:
    assert list(choose_paths(paths, allow)) == chosen


@pytest.mark.parametrize(
    ("paths", "allow", "sentence"),
    [
        ([], [], "holds no file"),
        (FOLDER, ["*.gguf"], "matches none of the source's 3 files"),
        (["config.json", "a.pt"], [], "pickles"),
        (["config.json", "a.bin"], ["*.bin"], "pickles"),
        (["README.md"], [], "none of 1 files holds weights"),
        (["a.gguf", "b.gguf"], [], "--allow one of them"),
        (["a.gguf", "a.gguf"], ["*"], "--allow one of them"),
        ([*FOLDER, "config.json"], [], "two files of one path"),
        (["a.gguf", "a.gguf/b.json"], [], "below what is a file too"),
        (["a.gguf", "a.gguf.part/b.json"], [], "below what is a file too"),
    ],
)
def test_refused(paths: list[str], allow: list[str], sentence: str) -> None:
    with pytest.raises(FetchError) as caught:
        choose_paths(paths, allow)
    assert sentence in str(caught.value)


def test_no_file_has_such_a_size() -> None:
    with pytest.raises(FetchError, match="size of -1"):
        choose_files([RemoteFile(path="a.gguf", size=-1, locator="")], [])


@given(st.text(alphabet="a./\\\0 \n", min_size=0, max_size=12))
def test_a_sound_path_stays_inside(path: str) -> None:
    try:
        require_sound_path(path)
    except FetchError:
        return
    depth = 0
    for name in path.split("/"):
        depth += -1 if name == ".." else 1
        assert depth > 0
        assert name not in {"", "."}
    assert not path.startswith("/")
    assert not set(path) & set("\\\0\n")


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        (["etc/a.json", "models/config.json", "models/sub/config.json"], "models/"),
        (["config.json", "models/config.json"], ""),
        (["opt/m/a.gguf"], "opt/m/"),
        (["etc/a.json"], ""),
    ],
)
def test_the_model_in_an_image(paths: list[str], root: str) -> None:
    assert model_root(paths) == root
