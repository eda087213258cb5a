"""Tokenizers from folders and GGUF files: found, extracted, kept, or refused in one sentence."""

import struct
from pathlib import Path

import pytest
from tests.worker.byte_vocabulary import byte_tokenizer, write_model_folder

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.gguf_metadata import read_gguf_metadata
from mizzen_worker.vocabulary.load import load_vocabulary
from mizzen_worker.vocabulary.model_path import default_model_name, find_gguf
from mizzen_worker.vocabulary.token_bytes import token_bytes_of


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case list():
            kind = 5 if value and isinstance(value[0], int) else 8
            body = b"".join(
                struct.pack("<i", one) if kind == 5 else _string(str(one)) for one in value
            )
            return struct.pack("<IIQ", 9, kind, len(value)) + body
    raise TypeError(value)


def write_gguf(path: Path, **changes: object) -> Path:
    vocab = byte_tokenizer().get_vocab(with_added_tokens=True)
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda entry: entry[1])]
    keys: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*tokens, "ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [*([1] * 256), 3, 4, 1],
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.chat_template": "{{ messages }}",
    }
    keys.update({name.replace("__", "."): value for name, value in changes.items()})
    body = b"".join(_string(k) + _value(v) for k, v in keys.items() if v is not None)
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, sum(v is not None for v in keys.values())) + body
    )
    return path


def test_gguf_tokenizer_is_extracted_once_and_kept(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    first = load_vocabulary(file)
    assert first.chat_template == "{{ messages }}"
    assert first.eos_token == "<end>"
    assert first.end_ids == {256}
    assert first.tokenizer.encode("ab<end>12").ids[:2] == [258, 256]
    assert (tmp_path / "m.tokenizer.json").exists()
    second = load_vocabulary(file)
    assert second.fingerprint == first.fingerprint
    assert load_vocabulary(tmp_path).fingerprint == first.fingerprint


def test_read_only_folder_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "m.gguf")

    def refuse(**_arguments: object) -> tuple[int, str]:
        raise PermissionError

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert load_vocabulary(file).tokenizer.encode("ab").ids == [258]
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_bos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.add_bos_token": True}
    file = write_gguf(tmp_path / "m.gguf", **changes)
    tokenizer = load_vocabulary(file).tokenizer
    assert tokenizer.encode("ab").ids == [257, 258]
    assert tokenizer.encode("ab", add_special_tokens=False).ids == [258]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "tokenizer.ggml.pre is 'klingon', which is none of"),
        ({"tokenizer.ggml.model": "bert"}, "only 'gpt2' (byte-level BPE) and 'llama'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores is missing"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1, 2]},
            "has not one number for each token",
        ),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.merges": ["ab"]}, "which is no pair"),
    ],
)
def test_gguf_that_cannot_be_used_is_refused(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ModelLoadError) as raised:
        load_vocabulary(write_gguf(tmp_path / "m.gguf", **changes))
    assert sentence in str(raised.value)


def test_cut_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 10, 40, len(whole) // 2):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError):
            read_gguf_metadata(cut)
    cut.write_bytes(b"PK\x03\x04" + whole)
    with pytest.raises(ModelLoadError, match="is no GGUF file"):
        read_gguf_metadata(cut)
    cut.write_bytes(whole[:16] + struct.pack("<Q", 2**63) + whole[24:])
    with pytest.raises(ModelLoadError, match="more than"):
        read_gguf_metadata(cut)


def test_folders(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "model")
    found = load_vocabulary(folder)
    assert found.eos_token == "<end>"
    (folder / "chat_template.jinja").write_text("other")
    assert load_vocabulary(folder).chat_template == "other"
    assert default_model_name(folder) == "model"
    assert default_model_name(tmp_path / "a.b.gguf") == "a.b"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelLoadError, match=r"holds no tokenizer\.json and no \.gguf"):
        load_vocabulary(empty)
    with pytest.raises(ModelLoadError, match="does not exist"):
        load_vocabulary(tmp_path / "none")
    (empty / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        load_vocabulary(empty)
    two = tmp_path / "two"
    two.mkdir()
    write_gguf(two / "a.gguf")
    write_gguf(two / "b.gguf")
    with pytest.raises(ModelLoadError, match=r"\(a\.gguf, b\.gguf\); give the path of one"):
        load_vocabulary(two)
    (two / "config.json").write_text("{}")
    assert find_gguf(two) is None, "its weights are safetensors, and so is its name the folder's"


def test_a_skipped_tokenizer_names_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    found = load_vocabulary(tmp_path, is_skipped=True)
    assert found.tokenizer.encode("<7><299>").ids == [7, 299]
    table = token_bytes_of(found.tokenizer.to_str())
    assert table.bytes_of(299) == b"<299>"
    assert found.end_ids == frozenset()


@pytest.mark.parametrize("config", ["{}", '{"vocab_size": 0}', '{"vocab_size": true}'])
def test_a_skipped_tokenizer_needs_the_size_of_the_vocabulary(tmp_path: Path, config: str) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        load_vocabulary(tmp_path, is_skipped=True)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match="vocab_size is"):
        load_vocabulary(tmp_path, is_skipped=True)
