"""Owns making a SentencePiece BPE tokenizer out of GGUF tokens and scores; owns no files.

SentencePiece joins, again and again, the two neighbours whose union is the token of the highest
score. The library's BPE joins by a list of pairs; so every way to make a token of two others is a
pair, in the order of the scores. A character that is no token is written as its bytes.
"""

from tokenizers import Tokenizer, decoders, models, normalizers

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.vocabulary.gguf_metadata import MetadataValue
from mizzen_worker.vocabulary.gguf_special_tokens import (
    add_special_tokens,
    bos_template,
    strings,
)

_METASPACE = "\u2581"
_TYPE_NORMAL = 1
_TYPE_UNKNOWN = 2


def sentencepiece_from_gguf(metadata: dict[str, MetadataValue], *, source: str) -> Tokenizer:
    """Build the tokenizer; raises ``ModelLoadError`` naming the key that does not work."""
    tokens = strings(metadata, "tokenizer.ggml.tokens", source=source)
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens), source)
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens), source)
    unknown = next(
        (token for token, kind in zip(tokens, kinds, strict=True) if kind == _TYPE_UNKNOWN), None
    )
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges(tokens, scores, kinds),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    is_space_added = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    spaces = normalizers.Replace(" ", _METASPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_METASPACE), spaces])
        if is_space_added
        else spaces
    )
    steps = [decoders.Replace(_METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if is_space_added else steps
    )
    add_special_tokens(tokenizer, tokens, metadata)
    bos = bos_template(tokens, metadata, is_default=True)
    if bos is not None:
        tokenizer.post_processor = bos
    return tokenizer


def _merges(tokens: list[str], scores: list[float], kinds: list[float]) -> list[tuple[str, str]]:
    """Give every pair of tokens that makes a token, the best score first."""
    score_by_token = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == _TYPE_NORMAL
    }
    found: list[tuple[float, int, str, str]] = []
    for order, (token, score) in enumerate(score_by_token.items()):
        for place in range(1, len(token)):
            left, right = token[:place], token[place:]
            if left in score_by_token and right in score_by_token:
                found.append((-score, order, left, right))
    return [(left, right) for _, _, left, right in sorted(found, key=lambda merge: merge[:2])]


def _numbers(metadata: dict[str, MetadataValue], key: str, length: int, source: str) -> list[float]:
    value = metadata.get(key)
    numbers = (
        [float(entry) for entry in value if isinstance(entry, int | float)]
        if isinstance(value, list)
        else []
    )
    if len(numbers) != length:
        msg = f"{source}: {key} is missing or has not one number for each token; convert it again"
        raise ModelLoadError(msg)
    return numbers
