"""Owns what both families of GGUF vocabularies say alike: lists, special tokens, BOS."""

from tokenizers import AddedToken, Tokenizer, processors

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.gguf_metadata import MetadataValue

_TYPE_UNKNOWN = 2
_TYPE_CONTROL = 3
_TYPE_USER_DEFINED = 4


def strings(metadata: dict[str, MetadataValue], key: str, *, source: str) -> list[str]:
    """Give a metadata list of strings; raises ``ModelLoadError`` when it is none."""
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        msg = f"{source}: {key} is missing or no list of strings; convert it again"
        raise ModelLoadError(msg)
    return [str(entry) for entry in value]


def add_special_tokens(
    tokenizer: Tokenizer, tokens: list[str], metadata: dict[str, MetadataValue]
) -> None:
    """Mark control tokens as special, and user-defined ones as never split."""
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in {_TYPE_CONTROL, _TYPE_UNKNOWN}:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _TYPE_USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def bos_template(
    tokens: list[str], metadata: dict[str, MetadataValue], *, is_default: bool
) -> processors.TemplateProcessing | None:
    """Give what puts BOS before each text; None where the file does not ask for it."""
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    is_added = metadata.get("tokenizer.ggml.add_bos_token", is_default) is True
    if not is_added or not isinstance(bos_id, int) or not 0 <= bos_id < len(tokens):
        return None
    bos = tokens[bos_id]
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )
