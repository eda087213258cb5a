"""Owns making a byte-level BPE tokenizer out of GGUF metadata; owns no files.

GGUF names the pre-tokenizer instead of describing it; the table below says what each name means.
A name that is not in it is refused, because a wrong split gives other tokens without any error.
"""

from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.gguf_metadata import MetadataValue

_TYPE_CONTROL = 3
_TYPE_USER_DEFINED = 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How text is split before merging: own pattern, or GPT-2's; digits one by one or not."""

    pattern: str | None = None
    is_digit_alone: bool = False
    is_nfc: bool = False
    is_merge_skipped_for_whole_words: bool = False


_PRE_TO_SPLIT = {
    "gpt-2": _Split(),
    "gpt2": _Split(),
    "smollm": _Split(is_digit_alone=True),
    "starcoder": _Split(is_digit_alone=True),
    "refact": _Split(is_digit_alone=True),
    "command-r": _Split(is_digit_alone=True),
    "codeshell": _Split(is_digit_alone=True),
    "llama-bpe": _Split(pattern=_LLAMA3, is_merge_skipped_for_whole_words=True),
    "llama3": _Split(pattern=_LLAMA3, is_merge_skipped_for_whole_words=True),
    "llama-v3": _Split(pattern=_LLAMA3, is_merge_skipped_for_whole_words=True),
    "qwen2": _Split(pattern=_QWEN2, is_nfc=True),
}


def tokenizer_from_gguf(metadata: dict[str, MetadataValue], *, source: str) -> Tokenizer:
    """Build the tokenizer; raises ``ModelLoadError`` naming the key that does not work."""
    family = metadata.get("tokenizer.ggml.model")
    if family != "gpt2":
        msg = (
            f"{source}: tokenizer.ggml.model is {family!r} and only 'gpt2' (byte-level BPE) can be "
            "extracted; put the model's tokenizer.json beside the file"
        )
        raise ModelLoadError(msg)
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    split = _PRE_TO_SPLIT.get(str(pre))
    if split is None:
        msg = (
            f"{source}: tokenizer.ggml.pre is {pre!r}, which is none of "
            f"{', '.join(sorted(_PRE_TO_SPLIT))}; put the model's tokenizer.json beside the file"
        )
        raise ModelLoadError(msg)
    tokens = strings(metadata, "tokenizer.ggml.tokens", source=source)
    merges = strings(metadata, "tokenizer.ggml.merges", source=source)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[_pair(merge, source) for merge in merges],
            ignore_merges=split.is_merge_skipped_for_whole_words,
        )
    )
    if split.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, tokens, metadata)
    _add_bos(tokenizer, tokens, metadata)
    return tokenizer


def strings(metadata: dict[str, MetadataValue], key: str, *, source: str) -> list[str]:
    """Give a metadata list of strings; raises ``ModelLoadError`` when it is none."""
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        msg = f"{source}: {key} is missing or no list of strings; convert it again"
        raise ModelLoadError(msg)
    return [str(entry) for entry in value]


def _pair(merge: str, source: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        msg = f"{source}: tokenizer.ggml.merges holds {merge!r}, which is no pair"
        raise ModelLoadError(msg)
    return left, right


def _pre_tokenizer(split: _Split) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.is_digit_alone:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _add_special_tokens(
    tokenizer: Tokenizer, tokens: list[str], metadata: dict[str, MetadataValue]
) -> None:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _TYPE_CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _TYPE_USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_bos(tokenizer: Tokenizer, tokens: list[str], metadata: dict[str, MetadataValue]) -> None:
    byte_level = processors.ByteLevel(trim_offsets=False)
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    is_added = metadata.get("tokenizer.ggml.add_bos_token") is True
    if not is_added or not isinstance(bos_id, int) or not 0 <= bos_id < len(tokens):
        tokenizer.post_processor = byte_level
        return
    bos = tokens[bos_id]
    template = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )
    tokenizer.post_processor = processors.Sequence([byte_level, template])
