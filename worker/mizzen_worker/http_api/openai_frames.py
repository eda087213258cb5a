"""Owns the frames of OpenAI's streams; owns no generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import TokenLogprob
from mizzen_worker.contracts.request import Usage
from mizzen_worker.http_api.errors import Dialect, ErrorAnswer
from mizzen_worker.http_api.event_stream import COMMENT, DONE, event
from mizzen_worker.http_api.logprobs import (
    CompletionLogprobs,
    CompletionLogprobWriter,
    Score,
    chat_logprobs,
)
from mizzen_worker.http_api.openai_answers import (
    AnswerHead,
    ChatCompletionChunk,
    ChunkChoice,
    CompletionChoice,
    Delta,
    UsageBody,
    completion_of,
    in_order,
    matched_of,
    reason_of,
    running_usage,
    usage_of,
)
from mizzen_worker.http_api.request_fields import StreamOptions
from mizzen_worker.tokenizer.request_state import Output
from mizzen_worker.vocabulary.token_bytes import TokenBytes


@dataclass(slots=True, kw_only=True)
class StreamUsage:
    """Token counts of one stream, as far as its client asked for them."""

    options: StreamOptions | None
    num_prompt: int
    num_choices: int
    _num_completion: int = 0
    _usages: dict[int, Usage] = field(default_factory=dict)

    def note(self, index: int, output: Output) -> None:
        """Count an output."""
        self._num_completion += len(output.token_ids)
        if output.final is not None:
            self._usages[index] = output.final.usage

    def of_chunk(self) -> UsageBody | UnsetType | None:
        """Give what an ordinary chunk says."""
        options = self.options
        if options is None:
            return UNSET
        if options.continuous_usage_stats:
            return running_usage(self.num_prompt, self._num_completion)
        return None if options.include_usage else UNSET

    def of_last(self) -> UsageBody | None:
        """Give the totals, or None when nobody asked."""
        if self.options is None or not self.options.include_usage:
            return None
        return usage_of(in_order(self._usages), self.num_choices)


def _failed(answer: ErrorAnswer) -> bytes:
    return event(answer.body(Dialect.OPENAI)) + DONE


class ChatFrames:
    """Frames of one streamed chat answer; ``vocabulary`` is given where scores are wanted."""

    keep_alive = COMMENT

    def __init__(
        self,
        head: AnswerHead,
        usage: StreamUsage,
        *,
        num_choices: int,
        vocabulary: TokenBytes | None,
    ) -> None:
        self._head = head
        self._usage = usage
        self._num_choices = num_choices
        self._vocabulary = vocabulary

    def begin(self) -> bytes:
        """See ``Frames``."""
        delta = Delta(role="assistant", content="")
        return b"".join(
            self._chunk(ChunkChoice(index=index, delta=delta)) for index in range(self._num_choices)
        )

    def output(self, index: int, output: Output) -> bytes:
        """See ``Frames``."""
        self._usage.note(index, output)
        frame = b""
        vocabulary = self._vocabulary
        if vocabulary is not None and output.token_ids:
            scores = chat_logprobs(vocabulary, output.token_ids, output.logprobs)
            choice = ChunkChoice(index=index, delta=Delta(content=output.text), logprobs=scores)
            frame = self._chunk(choice)
        elif output.text:
            frame = self._chunk(ChunkChoice(index=index, delta=Delta(content=output.text)))
        final = output.final
        if final is not None:
            frame += self._chunk(
                ChunkChoice(
                    index=index,
                    delta=Delta(),
                    finish_reason=reason_of(final),
                    matched_stop=matched_of(final),
                )
            )
        return frame

    def end(self) -> bytes:
        """See ``Frames``."""
        usage = self._usage.of_last()
        return DONE if usage is None else event(self._body([], usage)) + DONE

    def error(self, answer: ErrorAnswer) -> bytes:
        """See ``Frames``."""
        return _failed(answer)

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return event(self._body([choice], self._usage.of_chunk()))

    def _body(
        self, choices: list[ChunkChoice], usage: UsageBody | UnsetType | None
    ) -> ChatCompletionChunk:
        head = self._head
        return ChatCompletionChunk(
            id=head.response_id,
            created=head.created_at,
            model=head.model,
            choices=choices,
            usage=usage,
            system_fingerprint=head.fingerprint,
        )


class Echo:
    """What stands before one completion when the prompt is repeated."""

    def __init__(self, text: str, token_ids: Sequence[TokenId]) -> None:
        self.text = text
        self.token_ids = token_ids

    def entries(self, prompt_logprobs: Sequence[TokenLogprob]) -> list[Score]:
        """Give one entry a prompt token; the first has nothing before it."""
        return [None, *prompt_logprobs]


class CompletionFrames:
    """Frames of one streamed completion, of one or several prompts and choices."""

    keep_alive = COMMENT

    def __init__(
        self,
        head: AnswerHead,
        usage: StreamUsage,
        *,
        writers: Sequence[CompletionLogprobWriter],
        echoes: Sequence[Echo],
    ) -> None:
        self._head = head
        self._usage = usage
        self._writers = writers
        self._echoes = dict(enumerate(echoes))

    def begin(self) -> bytes:
        """See ``Frames``."""
        return b""

    def output(self, index: int, output: Output) -> bytes:
        """See ``Frames``."""
        self._usage.note(index, output)
        text = output.text
        token_ids: Sequence[TokenId] = output.token_ids
        entries: Sequence[Score] = output.logprobs
        echo = self._echoes.pop(index, None)
        if echo is not None:
            text = echo.text + text
            token_ids = (*echo.token_ids, *token_ids)
            if self._writers:
                entries = (*echo.entries(output.prompt_logprobs), *entries)
        scores: CompletionLogprobs | None = None
        if self._writers and token_ids:
            scores = self._writers[index].write(token_ids, entries)
        final = output.final
        if not text and scores is None and final is None:
            return b""
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=scores,
            finish_reason=None if final is None else reason_of(final),
            matched_stop=matched_of(final),
        )
        return event(completion_of(self._head, [choice], self._usage.of_chunk()))

    def end(self) -> bytes:
        """See ``Frames``."""
        usage = self._usage.of_last()
        return DONE if usage is None else event(completion_of(self._head, [], usage)) + DONE

    def error(self, answer: ErrorAnswer) -> bytes:
        """See ``Frames``."""
        return _failed(answer)
