"""Owns the frames of ``/generate``; owns no generation.

By default an event carries the whole text so far, as that API's clients expect; ``delta`` asks for
what is new only. A sign of life is an empty line: clients of that API read every other line as
JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import TokenLogprob
from mizzen_worker.http_api.errors import Dialect, ErrorAnswer
from mizzen_worker.http_api.event_stream import DONE, event
from mizzen_worker.http_api.native_answers import ScoreStyle, Shown, generated
from mizzen_worker.http_api.subrequests import Subrequests
from mizzen_worker.tokenizer.request_state import GenerateInput, Output


@dataclass(slots=True, kw_only=True)
class _SoFar:
    text: str = ""
    token_ids: list[TokenId] = field(default_factory=list)
    num_tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStream:
    """What a stream shows, answer by answer."""

    ids: Sequence[str]
    inputs: Sequence[GenerateInput]
    styles: Sequence[ScoreStyle | None]
    weight_version: str | None
    is_batch: bool
    is_delta: bool


class NativeFrames:
    """Frames of one native stream."""

    keep_alive = b"\n\n"

    def __init__(self, stream: NativeStream, subrequests: Subrequests) -> None:
        self._stream = stream
        self._subrequests = subrequests
        self._so_far = [_SoFar() for _ in stream.ids]

    def begin(self) -> bytes:
        """See ``Frames``."""
        return b""

    def output(self, index: int, output: Output) -> bytes:
        """See ``Frames``."""
        stream, so_far = self._stream, self._so_far[index]
        so_far.num_tokens += len(output.token_ids)
        so_far.prompt_logprobs = output.prompt_logprobs or so_far.prompt_logprobs
        if stream.is_delta:
            so_far.text = output.text
            so_far.token_ids = list(output.token_ids)
            so_far.logprobs = list(output.logprobs)
        else:
            so_far.text += output.text
            so_far.token_ids.extend(output.token_ids)
            so_far.logprobs.extend(output.logprobs)
        shown = Shown(
            result_id=stream.ids[index],
            wanted=stream.inputs[index],
            text=so_far.text,
            token_ids=so_far.token_ids,
            num_tokens=so_far.num_tokens,
            logprobs=so_far.logprobs,
            prompt_logprobs=so_far.prompt_logprobs,
            final=output.final,
            seconds=self._subrequests.seconds,
            weight_version=stream.weight_version,
        )
        place = index if stream.is_batch else UNSET
        return event(generated(shown, stream.styles[index], place))

    def end(self) -> bytes:
        """See ``Frames``."""
        return DONE

    def error(self, answer: ErrorAnswer) -> bytes:
        """See ``Frames``."""
        return event(answer.body(Dialect.NATIVE)) + DONE
