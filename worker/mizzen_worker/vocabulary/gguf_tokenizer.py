"""Owns making a tokenizer out of GGUF metadata; owns no files.

Two families: byte-level BPE ("gpt2"), made here, and SentencePiece BPE with scores ("llama"). GGUF
names the pre-tokenizer of the first instead of describing it; the table below says what each name
means. A name that is not in it is refused, because a wrong split gives other tokens without any
error.
"""

from dataclasses import dataclass

from tokenizers import (
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
from mizzen_worker.vocabulary.gguf_sentencepiece import sentencepiece_from_gguf
from mizzen_worker.vocabulary.gguf_special_tokens import (
    add_special_tokens,
    bos_template,
    strings,
)

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
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            return _byte_level(metadata, source)
        case "llama":
            return sentencepiece_from_gguf(metadata, source=source)
        case family:
            msg = (
                f"{source}: tokenizer.ggml.model is {family!r} and only 'gpt2' (byte-level BPE) "
                "and 'llama' (SentencePiece BPE) can be extracted; put the model's tokenizer.json "
                "beside the file"
            )
            raise ModelLoadError(msg)


def _byte_level(metadata: dict[str, MetadataValue], source: str) -> Tokenizer:
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
    add_special_tokens(tokenizer, tokens, metadata)
    byte_level = processors.ByteLevel(trim_offsets=False)
    bos = bos_template(tokens, metadata, is_default=False)
    tokenizer.post_processor = byte_level if bos is None else processors.Sequence([byte_level, bos])
    return tokenizer


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
