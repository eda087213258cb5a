"""Owns a vocabulary without words, for benchmarks of models that come without a tokenizer.

Token n stands for the text ``<n>``, so prompts can be given as ids or as such texts, and answers
can be counted. It is no tokenizer of the model: its texts mean nothing to the weights.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.json_file import read_json_object


def numbered_tokenizer(folder: Path) -> Tokenizer:
    """Name each id of the vocabulary that a config.json counts; raises ``ModelLoadError``."""
    file = folder / "config.json"
    if not file.exists():
        msg = f"{folder}: holds no config.json, whose vocab_size --skip-tokenizer needs"
        raise ModelLoadError(msg)
    size = read_json_object(file).get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        msg = f"{file}: vocab_size is {size!r}; --skip-tokenizer needs a number of tokens"
        raise ModelLoadError(msg)
    tokenizer = Tokenizer(
        WordLevel({f"<{index}>": index for index in range(size)}, unk_token="<0>")
    )
    tokenizer.decoder = ByteLevel()
    tokenizer.pre_tokenizer = Split(Regex(r"<\d+>"), "isolated")
    return tokenizer
