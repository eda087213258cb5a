"""Stop strings and patterns: nothing of a match leaks, however text is cut into pieces."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.detokenizer.stop_patterns import (
    MAX_MATCH_CHARS,
    StopPatterns,
    check_stop_patterns,
)
from mizzen_worker.detokenizer.stop_strings import StopMatcher


def _first_stop(
    text: str, stops: Sequence[str], patterns: Sequence[str] = ()
) -> tuple[str, str | None]:
    """Say what the rule says, looking at the whole text at once."""
    for end in range(len(text) + 1):
        for start in range(end):
            for stop in [*stops, *patterns]:
                pattern = re.escape(stop) if stop in stops else stop
                if re.fullmatch(pattern, text[start:end]):
                    return text[:start], stop
    return text, None


def _run(matcher: StopMatcher, text: str, cuts: list[int]) -> tuple[list[str], str | None]:
    shown: list[str] = []
    place = 0
    for cut in [*cuts, *[3] * len(text)]:
        piece = text[place : place + cut]
        place += cut
        result = matcher.push(piece)
        shown.append(result.text)
        if result.stopped_by is not None:
            return shown, result.stopped_by
    return [*shown, matcher.flush()], None


CUTS = st.lists(st.integers(1, 5), max_size=30)
STRINGS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\x61", "c", "ab", "\\\\"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{1,3}", "*?"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    ),
    max_leaves=5,
).filter(lambda pattern: re.fullmatch(pattern, "") is None)


@given(st.text("abc\\", max_size=24), STRINGS, st.lists(PATTERNS, max_size=2), CUTS)
@example("abaab", ["aab"], [], [])
@example("aab", ["b", "aab", "ab"], [], [])
def test_the_first_to_be_complete_ends_the_text_however_it_is_cut(
    text: str, stops: list[str], patterns: list[str], cuts: list[int]
) -> None:
    shown, stopped_by = _run(StopMatcher(stops, patterns), text, cuts)
    expected, stop = _first_stop(text, stops, patterns)
    assert "".join(shown) == expected
    assert (stopped_by is None) == (stop is None)


@given(st.text("ab", max_size=24), st.lists(PATTERNS, min_size=1, max_size=2), CUTS)
def test_no_more_is_held_than_may_still_become_a_match(
    text: str, patterns: list[str], cuts: list[int]
) -> None:
    """What is held can be continued to a match, so no text waits for nothing."""
    known = StopPatterns(patterns)
    num_open = known.num_open_chars(text)
    held = text[len(text) - num_open :]
    completions = ("".join(tail) for num in range(9) for tail in _tails(num))
    if num_open and not any(re.search(pattern, text) for pattern in patterns):
        assert any(
            re.fullmatch(pattern, held + tail) for tail in completions for pattern in patterns
        )


def _tails(num: int) -> list[tuple[str, ...]]:
    tails: list[tuple[str, ...]] = [()]
    for _ in range(num):
        tails = [(*tail, char) for tail in tails for char in "abc\\"][:256]
    return tails


def test_text_that_may_begin_a_stop_is_held() -> None:
    matcher = StopMatcher(["<|end|>"])
    assert [matcher.push(piece).text for piece in ("a<", "|en", "x")] == ["a", "", "<|enx"]
    matcher = StopMatcher([], [r"\d{4}-\d\d"])
    assert [matcher.push(piece).text for piece in ("in 20", "24", ", 1", "9")] == [
        "in ",
        "",
        "2024, ",
        "",
    ]
    assert matcher.flush() == "19"


def test_a_match_is_kept_when_asked() -> None:
    assert StopMatcher(["END"], keep_stop=True).push("a END b").text == "a END"
    assert StopMatcher([], ["E.D"], keep_stop=True).push("a END b").text == "a END"


def test_a_string_and_a_pattern_compete_by_where_they_are_complete() -> None:
    result = StopMatcher(["cde"], ["b.d"]).push("abcdef")
    assert (result.text, result.stopped_by) == ("a", "b.d")
    result = StopMatcher(["bcd"], ["[a-z]+e"]).push("abcdef")
    assert (result.text, result.stopped_by) == ("a", "bcd")


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        ("(?i)human:", "a HuMan: b", "a "),
        ("x(?i)y|z", "a Z", "a "),
        ("(?i:x)y", "a XY xY Xy", "a XY xY "),
        (r"\QA.B*\E", "AxB A.B*", "AxB "),
        (r"\Qab\E+c", "ababc abbc", "ab"),
        (r"[[:digit:]]{2}]", "1] 12] ", "1] "),
        (r"[]a]b", "x]b", "x"),
        (r"[^]a]b", "]bcb", "]b"),
        (r"\p{Greek}\pN", "a β1", "a "),
        (r"\x{1F600}+!", "a 😀😀! b", "a "),
        (r"\1012", "xA2", "x"),
        (r"\0601", "x01", "x"),
        ("(?P<n>a)(?<m>b)", "xab", "x"),
        ("(?s)a.b", "xa\nb", "x"),
        ("a.b", "xa\nb", "xa\nb"),
        ("a{,2}", "xa{,2}", "x"),
        ("é+日", "xé日", "x"),
        ("a|bc{0}d", "xbd", "x"),
        ("x(?:)y", "axy", "a"),
    ],
)
def test_syntax_of_re2(pattern: str, text: str, shown: str) -> None:
    check_stop_patterns([pattern], field="stop_regex")
    for size in (1, 2, len(text)):
        assert "".join(_run(StopMatcher([], [pattern]), text, [size] * len(text))[0]) == shown


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["a("], r"stop_regex is no pattern of RE2 syntax: missing \)"),
        (["a", "(?=b)"], r"stop_regex\[1\] is no pattern of RE2 syntax: invalid perl operator"),
        (["a*"], "can match the empty string"),
        (["|a"], "can match the empty string"),
        (["^a"], r"has \^, which looks at what stands beside"),
        (["a$"], r"has \$, which looks at"),
        ([r"\bfoo"], r"has \\b, which"),
        ([r"a\z"], r"has \\z, which"),
        ([r"a\C"], r"has \\C, which matches half a character"),
        (["a" * 257], "has 257 characters; give at most 256"),
        (["a"] * 9, "has 9 patterns; give at most 8"),
        ([r"(?:\pL{100}){9}"], "is too big"),
        (["[a-z]{0,513}Q"], "repeats more than 512 parts"),
        (["([a-z]{1,30}){1,30}Q"], "repeats more than 512 parts"),
        ([f"[a-z]{{0,100}}{end}" for end in "ABCDEF"], "repeats more than 512 parts"),
        (["(" * 20 + "a" + ")" * 20], "nests groups more than 16 deep"),
        (["a\ud800"], "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(patterns: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        check_stop_patterns(patterns, field="stop_regex")
    assert raised.value.field is not None
    assert raised.value.field.startswith("stop_regex")


@given(st.text(r"ab.*+?|()[]{}^$\123,:-iQEpPLxsdwzbC<>", max_size=14))
def test_any_pattern_is_refused_or_works(pattern: str) -> None:
    try:
        check_stop_patterns([pattern], field="stop_regex")
    except RequestError:
        return
    whole = StopMatcher([], [pattern]).push("abba 11 {},: xQE").text
    shown, _ = _run(StopMatcher([], [pattern]), "abba 11 {},: xQE", [1] * 30)
    assert "".join(shown).startswith(whole)


def test_a_match_longer_than_the_limit_is_not_found_and_text_goes_on() -> None:
    matcher = StopMatcher([], ["a[^b]*b"])
    text = "a" + "x" * (MAX_MATCH_CHARS - 2) + "b"
    assert "".join(_run(matcher, text, [7] * 200)[0]) == ""
    text = "a" + "x" * (MAX_MATCH_CHARS - 1) + "b"
    for size in (1, 7, 5000):
        shown, stopped_by = _run(StopMatcher([], ["a[^b]*b"]), text, [size] * 1200)
        assert ("".join(shown), stopped_by) == (text, None)


class _Counted(str):
    """A character that counts how often it is compared."""

    __slots__ = ()
    num_compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.num_compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        _Counted.num_compared += 1
        return str.__ne__(self, other)

    __hash__ = str.__hash__


class _CountedText(str):
    __slots__ = ()

    def __getitem__(self, index):
        return _Counted(str.__getitem__(self, index))


def test_a_long_string_costs_the_same_per_character_wherever_it_fails() -> None:
    """As many comparisons as characters, times a constant, however much had begun."""
    _Counted.num_compared = 0
    matcher = StopMatcher([_CountedText("a" * 5000 + "b")])
    _Counted.num_compared = 0
    for _ in range(10_000):
        matcher.push("aa")
    assert 20_000 <= _Counted.num_compared <= 60_000
