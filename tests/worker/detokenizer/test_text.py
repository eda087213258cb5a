"""Text out of tokens: whole characters only, the same however tokens are cut into feeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.byte_vocabulary import EOS_ID, byte_tokenizer

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.text_messages import CloseText, Feed, OpenText, TextChunk, TextLost
from mizzen_worker.detokenizer.incremental import TextDecoder
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.vocabulary.token_bytes import TokenBytes, token_bytes_of

TOKENIZER = byte_tokenizer()
TABLE = token_bytes_of(TOKENIZER.to_str())
R = RequestId("r")


def _decoded(ids: list[int], *, skip: bool = True) -> str:
    decoder = TextDecoder(TABLE, skip_special_tokens=skip)
    return "".join(decoder.push([TokenId(i)]) for i in ids) + decoder.flush()


@given(st.text(max_size=40))
def test_text_comes_back_whole(text: str) -> None:
    assert _decoded(TOKENIZER.encode(text).ids) == text


@given(st.lists(st.integers(0, 257), max_size=60))
def test_any_tokens_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    assert _decoded(ids) == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.text(min_size=1, max_size=20))
def test_no_piece_has_half_a_character(text: str) -> None:
    decoder = TextDecoder(TABLE, skip_special_tokens=True)
    pieces = [decoder.push([TokenId(i)]) for i in TOKENIZER.encode(text).ids]
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)
    assert decoder.flush() == ""


def test_special_tokens_are_left_out_or_shown() -> None:
    ids = [*TOKENIZER.encode("a").ids, EOS_ID]
    assert _decoded(ids) == "a"
    assert _decoded(ids, skip=False) == "a<end>"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert _decoded([10_000, -1]) == ""


def test_metaspace_vocabulary_drops_only_the_first_space() -> None:
    table = TokenBytes(
        bytes_by_id=[b" Hello", b" world", b"\xc3", b"\xa9"],
        special_ids=frozenset(),
        is_first_space_dropped=True,
    )
    decoder = TextDecoder(table, skip_special_tokens=True)
    assert [decoder.push([TokenId(i)]) for i in (0, 1, 2, 3)] == ["Hello", " world", "", "é"]


def test_unknown_decoder_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="WordPiece"):
        token_bytes_of('{"decoder": {"type": "WordPiece"}, "model": {"vocab": {}}}')


def _feed(texts: Texts, start: int, ids: list[int], *, is_last: bool = False) -> object:
    return texts.take(
        Feed(request_id=R, start=start, token_ids=tuple(map(TokenId, ids)), is_last=is_last)
    )


def test_stop_string_is_counted_to_the_token_and_closes_the_text() -> None:
    texts = Texts(TABLE)
    texts.take(OpenText(request_id=R, stop=("lo w",)))
    ids = TOKENIZER.encode("hello world").ids
    assert _feed(texts, 0, ids) == TextChunk(
        request_id=R, text="hel", num_tokens=7, is_last=True, stopped_by="lo w"
    )
    assert texts.num_open == 0


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_reopened_text_goes_on_where_it_was(ids: list[int], first: int, again: int) -> None:
    whole = _decoded(ids)
    texts = Texts(TABLE)
    texts.take(OpenText(request_id=R))
    before = _feed(texts, 0, ids[:first])
    assert isinstance(before, TextChunk)
    texts.take(OpenText(request_id=R, skip_chars=len(before.text)))
    middle = _feed(texts, 0, ids[:again])
    last = _feed(texts, len(ids[:again]), ids[again:], is_last=True)
    assert isinstance(middle, TextChunk)
    assert isinstance(last, TextChunk)
    assert before.text + middle.text + last.text == whole


def test_unknown_closed_and_shed_texts_are_lost() -> None:
    texts = Texts(TABLE, max_open=1)
    assert _feed(texts, 0, [1]) == TextLost(request_id=R)
    texts.take(OpenText(request_id=R))
    texts.take(CloseText(request_id=R))
    assert _feed(texts, 0, [1]) == TextLost(request_id=R)
    texts.take(OpenText(request_id=R))
    texts.take(OpenText(request_id=RequestId("other")))
    assert _feed(texts, 0, [1]) == TextLost(request_id=R)


def test_feed_that_does_not_follow_is_lost() -> None:
    texts = Texts(TABLE)
    texts.take(OpenText(request_id=R))
    assert _feed(texts, 3, [1]) == TextLost(request_id=R)
