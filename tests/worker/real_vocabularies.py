"""Vocabularies of the kinds that models have, made in place by the ``tokenizers`` library."""

from functools import cache

from tokenizers import (
    AddedToken,
    SentencePieceUnigramTokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from mizzen_worker.vocabulary.gguf_tokenizer import tokenizer_from_gguf

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps",
    "Ünïcödé wörds — naïve café, señor; 3.14159 2024-11-29",
    "日本語の文章と漢字、かな。中文也在这里。한국어 문장",
    "emoji 😀😀👍🏽 👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u0308 combining",
    "  spaces   and\ttabs\n\nand lines ",
]
SPECIAL = ["<s>", "</s>"]


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE: tokens end in the middle of characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    return tokenizer


def sentencepiece_metadata(pieces: list[str]) -> dict[str, object]:
    """Write a SentencePiece BPE vocabulary as GGUF does: what comes first has the higher score."""
    chars = sorted({char for piece in pieces for char in piece})
    pieces = [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", *SPECIAL, *byte_tokens, *pieces, *chars]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [
            *[0.0] * (3 + len(byte_tokens)),
            *[-float(place) for place in range(len(pieces) + len(chars))],
        ],
        "tokenizer.ggml.token_type": [
            *[2, 3, 3],
            *[6] * len(byte_tokens),
            *[1] * (len(pieces) + len(chars)),
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@cache
def sentencepiece() -> Tokenizer:
    """SentencePiece BPE with byte fallback: unknown characters are several tokens."""
    words = ["▁" + word for text in TEXTS[:2] for word in text.split()]
    pieces = [word[:end] for word in words for end in range(2, len(word) + 1)]
    return tokenizer_from_gguf(sentencepiece_metadata([*pieces, "日本"]), source="test")


@cache
def unigram() -> Tokenizer:
    """SentencePiece Unigram; the normalizer is left out, for texts to come back as they were."""
    trained = SentencePieceUnigramTokenizer()
    trained.train_from_iterator(
        TEXTS, vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.normalizer = normalizers.Replace("\u2581", " ")
    return tokenizer
