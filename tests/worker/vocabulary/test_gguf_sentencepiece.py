"""A SentencePiece vocabulary in a GGUF gives the tokens that SentencePiece's rule gives."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.worker.real_vocabularies import sentencepiece, sentencepiece_metadata

from mizzen_worker.vocabulary.gguf_tokenizer import tokenizer_from_gguf


def _joined(text: str, metadata: dict) -> list[str]:
    """Join, again and again, the neighbours whose union has the best score, the first of equals."""
    score_by_token = {
        token: score
        for token, score, kind in zip(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.scores"],
            metadata["tokenizer.ggml.token_type"],
            strict=True,
        )
        if kind == 1
    }
    parts = list(text)
    while True:
        unions = [
            (-score_by_token[left + right], place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in score_by_token
        ]
        if not unions:
            break
        _, place = min(unions)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    written: list[str] = []
    for part in parts:
        known = part in score_by_token
        written.extend([part] if known else [f"<0x{byte:02X}>" for byte in part.encode()])
    return written


PIECES = st.lists(st.text("ab▁", min_size=1, max_size=4), max_size=12, unique=True)


@given(PIECES, st.text("ab é", max_size=16))
def test_tokens_are_those_of_the_rule(pieces: list[str], text: str) -> None:
    metadata = sentencepiece_metadata([*pieces, "ab▁"])
    tokenizer = tokenizer_from_gguf(metadata, source="test")
    written = ("▁" + text if text else "").replace(" ", "▁")
    found = tokenizer.encode(text, add_special_tokens=False).tokens
    assert found == _joined(written, metadata)
    assert tokenizer.encode(text).tokens == ["<s>", *found]


def test_special_tokens_bos_and_space_prefix() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.encode("the</s>fox").tokens == ["<s>", "▁the", "</s>", "▁fox"]
    assert tokenizer.decode(tokenizer.encode("the fox 😀").ids) == "the fox 😀"
    metadata = sentencepiece_metadata(["ab", "\u2581b"])
    changes = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    plain = tokenizer_from_gguf({**metadata, **changes}, source="test")
    assert plain.encode("ab").tokens == ["ab"]
    assert plain.decode(plain.encode(" ab").ids) == " ab"
