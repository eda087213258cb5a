"""Streams that are open before an event and after it, and whether anything was cut meanwhile."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import openai
from tests.e2e.served import MODEL
from tests.e2e.waiting import wait_for

NUM_TOKENS = 600
"""Of each answer; a client that has one whole asks again, so that none is idle in an event.

More of them make events longer where a machine is slow: a worker that takes streams over computes
all their tokens anew, and 50 long ones take minutes of two cores.
"""
TOKENS_AROUND = 5
"""What every client reads before the event begins, and again after it has ended."""
NEAR_TIE_NATS = 0.15
"""Largest distance of the two likeliest tokens at which sums in another order may swap them."""


@dataclass
class Answer:
    """One greedy answer as a client saw it; times are of the monotonic clock."""

    pieces: list[str] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    num_tokens: int = 0
    """As told at the end."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class Stream:
    """One client, with all its answers to one question."""

    question: str
    answers: list[Answer] = field(default_factory=list)
    error: str = ""

    def num_since(self, moment_s: float) -> int:
        return sum(at_s > moment_s for one in self.answers for at_s in one.at_s)

    def __str__(self) -> str:
        num_tokens = [len(one.pieces) for one in self.answers]
        last_s = max((at_s for one in self.answers for at_s in one.at_s), default=0.0)
        return f"{num_tokens} pieces, the last {time.monotonic() - last_s:.0f} s ago"

    @property
    def is_whole(self) -> bool:
        return bool(self.answers) and bool(self.answers[-1].finish_reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An undisturbed answer: its tokens' texts and the distance to each one's rival in nats."""

    tokens: tuple[str, ...]
    gaps: tuple[float, ...]


def questions(number: int) -> list[str]:
    return [
        f"Write a long story about the number {index} and its friends." for index in range(number)
    ]


@contextmanager
def spanning_streams(client: openai.OpenAI, number: int) -> Iterator[list[Stream]]:
    """The body is the event: all clients read when it begins and read on when it has ended.

    After it they leave. Any error fails the test, as does an answer that ends without all its
    tokens.
    """
    with _streams(client, number, NUM_TOKENS, is_repeated=True) as streams:
        begun_s = time.monotonic()
        yield streams
        ended_s = time.monotonic()
        _wait_for_each(streams, "after the event", ended_s)
        again_s = time.monotonic() - ended_s
        longest = max(len(one.pieces) for stream in streams for one in stream.answers)
        print(
            f"\nthe event took {ended_s - begun_s:.0f} s, all read again after {again_s:.0f} s; "
            f"the longest answer has {longest} pieces"
        )
    _check_ends(streams, NUM_TOKENS)


@contextmanager
def ending_streams(client: openai.OpenAI, number: int, num_tokens: int) -> Iterator[list[Stream]]:
    """The body is the beginning of an event in the middle of which all streams come to their end.

    Every one ends because it has all its tokens; any other end fails the test.
    """
    with _streams(client, number, num_tokens, is_repeated=False) as streams:
        yield streams
        wait_for(
            "every stream ends",
            lambda: all(one.error or one.is_whole for one in streams),
            timeout_s=300,
        )
    _check_ends(streams, num_tokens)
    assert all(one.is_whole for one in streams)


@contextmanager
def _streams(
    client: openai.OpenAI, number: int, num_tokens: int, *, is_repeated: bool
) -> Iterator[list[Stream]]:
    streams = [Stream(question) for question in questions(number)]
    leave = threading.Event()

    def work(stream: Stream) -> None:
        _ask(client, stream, num_tokens, leave)
        while is_repeated and not leave.is_set() and not stream.error:
            _ask(client, stream, num_tokens, leave)

    threads = [threading.Thread(target=work, args=(one,)) for one in streams]
    for thread in threads:
        thread.start()
    try:
        _wait_for_each(streams, "before the event", time.monotonic())
        yield streams
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def _wait_for_each(streams: Sequence[Stream], when: str, since_s: float) -> None:
    def silent() -> list[str]:
        errors = [one.error for one in streams if one.error]
        assert not errors, f"{when}: {errors}"
        return [str(one) for one in streams if one.num_since(since_s) < TOKENS_AROUND]

    # Workers that took over all streams at once compute all their tokens anew first.
    try:
        wait_for(f"every client reads {when}", lambda: not silent(), timeout_s=600)
    except AssertionError as error:
        raise AssertionError(f"{error}; silent: {silent()}") from None


def _check_ends(streams: Sequence[Stream], num_tokens: int) -> None:
    assert [one.error for one in streams if one.error] == []
    answers = [answer for stream in streams for answer in stream.answers]
    ends = {(one.finish_reason, one.num_tokens) for one in answers if one.finish_reason}
    assert ends <= {("length", num_tokens)}


def _ask(client: openai.OpenAI, stream: Stream, num_tokens: int, leave: threading.Event) -> None:
    answer = Answer()
    stream.answers.append(answer)
    try:
        with client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": stream.question}],
            temperature=0,
            max_tokens=num_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        ) as chunks:
            finish_reason = ""
            for chunk in chunks:
                for choice in chunk.choices:
                    finish_reason = finish_reason or choice.finish_reason or ""
                    if choice.delta.content:
                        answer.pieces.append(choice.delta.content)
                        answer.at_s.append(time.monotonic())
                if chunk.usage:
                    answer.num_tokens = chunk.usage.completion_tokens
                if leave.is_set():
                    return
        answer.finish_reason = finish_reason
        stream.error = "" if finish_reason else "ended without a finish reason"
    except (openai.OpenAIError, httpx.HTTPError, OSError, ValueError) as error:
        stream.error = f"{type(error).__name__}: {error}"


def undisturbed(client: openai.OpenAI, question: str, num_tokens: int) -> Reference:
    """The first tokens of the greedy answer, asked alone."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=num_tokens,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    ranked = [
        sorted((top.logprob for top in one.top_logprobs), reverse=True) for one in logprobs.content
    ]
    return Reference(
        tokens=tuple(one.token for one in logprobs.content),
        gaps=tuple(best - rival for best, rival in ranked),
    )


def is_equal_or_near_tie(text: str, reference: Reference) -> bool:
    """True if equal as far as both go; False if they part at a near-tie; else it fails."""
    seen = ""
    for token, gap in zip(reference.tokens, reference.gaps, strict=True):
        if not text.startswith((seen + token)[: len(text)]):
            assert gap < NEAR_TIE_NATS, (
                f"after {seen[-60:]!r} came {text[len(seen) :][:40]!r} instead of {token!r}, "
                f"which was ahead by {gap:.2f} nats"
            )
            return False
        seen += token
        if len(seen) >= len(text):
            return True
    return True


def check_texts(client: openai.OpenAI, streams: Sequence[Stream]) -> None:
    """Each answer is that of an undisturbed run, or parts from it at a near-tie."""
    near_ties = num_answers = 0
    for stream in streams:
        longest = max(len(answer.pieces) for answer in stream.answers)
        # No token makes two pieces, and some make none.
        reference = undisturbed(client, stream.question, min(longest + 8, NUM_TOKENS))
        num_answers += len(stream.answers)
        near_ties += sum(
            not is_equal_or_near_tie(answer.text, reference) for answer in stream.answers
        )
    print(f"\nof {num_answers} answers compared {near_ties} part at a near-tie")
