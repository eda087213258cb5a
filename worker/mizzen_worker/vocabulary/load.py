"""Owns finding and loading the tokenizer and chat template of a model path; owns no weights.

A path is a ``.gguf`` file, a folder with ``tokenizer.json``, or a folder with one ``.gguf``. A
``tokenizer.json`` beside a GGUF wins over what is inside; one made from a GGUF is kept beside it
where the folder is writable. Imports no torch and no transformers.
"""

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.gguf_metadata import MetadataValue, read_gguf_metadata
from mizzen_worker.vocabulary.gguf_special_tokens import strings
from mizzen_worker.vocabulary.gguf_tokenizer import tokenizer_from_gguf
from mizzen_worker.vocabulary.json_file import read_json_object
from mizzen_worker.vocabulary.model_path import find_gguf
from mizzen_worker.vocabulary.numbered import numbered_tokenizer

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A loaded tokenizer; ``fingerprint`` is equal exactly where texts become equal tokens."""

    tokenizer: Tokenizer
    fingerprint: str
    chat_template: str | None
    bos_token: str
    eos_token: str

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        index = self.tokenizer.token_to_id(self.eos_token) if self.eos_token else None
        return frozenset() if index is None else frozenset({index})


def load_vocabulary(path: Path, *, is_skipped: bool = False) -> Vocabulary:
    """Load what a front process needs of a model; raises ``ModelLoadError``.

    ``is_skipped``: numbers instead of words, see ``numbered.py``.
    """
    if not path.exists():
        msg = f"{path}: does not exist; give a model folder or a .gguf file"
        raise ModelLoadError(msg)
    folder = path if path.is_dir() else path.parent
    if is_skipped:
        return _numbered(folder)
    gguf = find_gguf(path)
    if gguf is None and not (folder / TOKENIZER_FILE).exists():
        msg = (
            f"{path}: holds no {TOKENIZER_FILE} and no .gguf file; give a model folder or a .gguf "
            "file"
        )
        raise ModelLoadError(msg)
    metadata = read_gguf_metadata(gguf) if gguf is not None else {}
    tokenizer = _tokenizer(folder, gguf, metadata)
    config = {**_from_metadata(metadata, str(gguf)), **_from_folder(folder)}
    return Vocabulary(
        tokenizer=tokenizer,
        fingerprint=hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:32],
        chat_template=config.get("chat_template"),
        bos_token=config.get("bos_token", ""),
        eos_token=config.get("eos_token", ""),
    )


def _numbered(folder: Path) -> Vocabulary:
    tokenizer = numbered_tokenizer(folder)
    return Vocabulary(
        tokenizer=tokenizer,
        fingerprint=f"numbered-{tokenizer.get_vocab_size()}",
        chat_template=None,
        bos_token="",
        eos_token="",
    )


def _tokenizer(folder: Path, gguf: Path | None, metadata: dict[str, MetadataValue]) -> Tokenizer:
    file = folder / TOKENIZER_FILE
    if gguf is not None and not file.exists():
        # The extracted file is named for its GGUF: a folder may hold several models.
        file = gguf.with_suffix(f".{TOKENIZER_FILE}")
        if not file.exists():
            tokenizer = tokenizer_from_gguf(metadata, source=str(gguf))
            _keep(tokenizer.to_str(), file)
            return Tokenizer.from_str(tokenizer.to_str())
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        msg = f"{file}: cannot be read: {error}; remove or replace it"
        raise ModelLoadError(msg) from error


def _keep(text: str, file: Path) -> None:
    """Write atomically where possible; a read-only folder only costs the next start some time."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            Path(name).chmod(0o644)
            Path(name).rename(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _from_metadata(metadata: dict[str, MetadataValue], source: str) -> dict[str, str]:
    if not metadata:
        return {}
    found: dict[str, str] = {}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        found["chat_template"] = template
    tokens = strings(metadata, "tokenizer.ggml.tokens", source=source)
    for name in ("bos", "eos"):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            found[f"{name}_token"] = tokens[index]
    return found


def _from_folder(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    file = folder / "tokenizer_config.json"
    if file.exists():
        config = read_json_object(file)
        for name in ("bos_token", "eos_token"):
            token = config.get(name)
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str):
                found[name] = token
        template = config.get("chat_template")
        if isinstance(template, list):
            by_name = {entry.get("name"): entry.get("template") for entry in template}
            template = by_name.get("default")
        if isinstance(template, str):
            found["chat_template"] = template
    template_file = folder / "chat_template.jinja"
    if template_file.exists():
        found["chat_template"] = template_file.read_text(encoding="utf-8")
    return found
