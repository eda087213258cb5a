"""Bytes of tokens: what the library decodes, for every kind of vocabulary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker import real_vocabularies
from tests.worker.real_vocabularies import TEXTS

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.detokenizer.incremental import TextDecoder
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

KINDS = {
    "byte_level": real_vocabularies.byte_level(),
    "sentencepiece": real_vocabularies.sentencepiece(),
    "unigram": real_vocabularies.unigram(),
}
TABLES = {kind: token_bytes_of(tokenizer.to_str()) for kind, tokenizer in KINDS.items()}
KIND = st.sampled_from(sorted(KINDS))
TEXT = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from(" ".join(TEXTS)), max_size=40).map("".join),
    st.lists(st.sampled_from(["e\u0301", "👩‍👩‍👧‍👦", "🇩🇪", " ", "日本", "<s>", "a\u200d"])).map(
        "".join
    ),
)


def _pieces(kind: str, ids: list[int], sizes: list[int], *, skip: bool = True) -> list[str]:
    """Decode in feeds of the sizes given, then one by one."""
    decoder = TextDecoder(TABLES[kind], skip_special_tokens=skip)
    pieces, start = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        pieces.append(decoder.push([TokenId(token) for token in ids[start : start + size]]))
        start += size
    return [*pieces, decoder.flush()]


@given(KIND, TEXT, st.lists(st.integers(1, 5), max_size=10), st.booleans())
def test_a_text_comes_back_whole_however_its_tokens_are_fed(kind, text, sizes, skip) -> None:
    ids = KINDS[kind].encode(text).ids
    pieces = _pieces(kind, ids, sizes, skip=skip)
    whole = KINDS[kind].decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) == whole
    if "\ufffd" not in whole:
        assert not any("\ufffd" in piece for piece in pieces)


@given(TEXT)
def test_what_is_shown_after_each_token_is_what_its_whole_characters_say(text) -> None:
    """For every prefix: what was given out and what is still open are the library's decoding."""
    tokenizer, table = KINDS["byte_level"], TABLES["byte_level"]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    shown = ""
    decoder = TextDecoder(table, skip_special_tokens=True)
    for place, token in enumerate(ids):
        shown += decoder.push([TokenId(token)])
        whole = tokenizer.decode(ids[: place + 1])
        assert whole.startswith(shown)
        assert set(whole[len(shown) :]) <= {"\ufffd"}
        again = TextDecoder(table, skip_special_tokens=True)
        assert again.push([TokenId(one) for one in ids[: place + 1]]) + again.flush() == whole


@given(st.lists(st.integers(0, 500), max_size=40), st.lists(st.integers(1, 5), max_size=10))
def test_any_tokens_of_a_byte_level_vocabulary_decode_as_the_library_does(ids, sizes) -> None:
    tokenizer = KINDS["byte_level"]
    assert "".join(_pieces("byte_level", ids, sizes)) == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 320), max_size=40), st.lists(st.integers(1, 5), max_size=10))
def test_any_tokens_with_byte_fallback_are_their_bytes(ids, sizes) -> None:
    """Where bytes are no characters the library gives one U+FFFD a byte; we decode UTF-8."""
    table = TABLES["sentencepiece"]
    raw = b"".join(table.readable_bytes_of(token) for token in ids)
    expected = raw.decode(errors="replace").removeprefix(" ")
    assert "".join(_pieces("sentencepiece", ids, sizes)) == expected


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_token_alone(kind: str) -> None:
    tokenizer, table = KINDS[kind], TABLES[kind]
    ids = tokenizer.encode("the é日", add_special_tokens=False).ids
    assert b"".join(map(table.bytes_of, ids)).strip() == "the é日".encode() or kind == "unigram"
    assert table.bytes_of(-1) == table.bytes_of(10**6) == b""
    assert table.string_of(ids[0]).strip() in "the"


def test_half_a_character_alone_is_shown_as_such() -> None:
    table = TABLES["sentencepiece"]
    first = KINDS["sentencepiece"].token_to_id("<0xE6>")
    assert (table.bytes_of(first), table.string_of(first)) == (b"\xe6", "\ufffd")
