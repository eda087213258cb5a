"""A byte-level vocabulary made in place: one token a byte, two special tokens, a chat template."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mizzen_worker.vocabulary.load import Vocabulary, load_vocabulary

EOS_ID = 256
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('tools are not known') }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] }}<end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<end>", special=True), AddedToken("<pad>", special=True)]
    )
    return tokenizer


def write_model_folder(folder: Path) -> Path:
    """Write what a front process reads of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_vocabulary(folder: Path) -> Vocabulary:
    return load_vocabulary(write_model_folder(folder))
