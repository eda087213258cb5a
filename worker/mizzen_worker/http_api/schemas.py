"""Owns the bodies of requests: pydantic models of OpenAI's and the native API; owns no meaning.

Unknown fields are dropped; ``validation.refuse_unserved`` looks at the raw body for those that
would change an answer, ``misspelling.refuse_misspelt`` for those that are nearly one of these.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_PROMPTS = 64
MAX_TEMPERATURE = 1e6
MAX_INTEGER = 2**31 - 1
"""Largest count, rank or priority: whatever is taken here fits into every message and tensor."""

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]
ResultId = Annotated[str, Field(max_length=256)]
Priority = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class _Body(BaseModel):
    """Lenient in nothing but unknown fields: "3" is no number, 1.0 is no boolean."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(_Body):
    """What a stream carries beside text."""

    include_usage: bool = False


class _Sampling(_Body):
    """Fields that both OpenAI routes take, with the usual extensions."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INTEGER)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, max_length=64)
    min_tokens: int | None = Field(default=None, ge=0)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = Field(default=None, max_length=256)
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TextPart(_Body):
    """A piece of a message; only text is read."""

    type: str
    text: str | None = None


class ChatMessage(_Body):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None


class ChatRequest(_Sampling):
    """Body of ``/v1/chat/completions``."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(_Sampling):
    """Body of ``/v1/completions``."""

    model: str
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: int | None = Field(default=None, ge=1)


class NativeSampling(_Body):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    min_new_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INTEGER)
    min_p: float | None = Field(default=None, ge=0, le=1)
    stop: Stop | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, max_length=64)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    sampling_seed: int | None = None


class GenerateRequest(_Body):
    """Body of ``/generate``; a list of texts or of id lists is a batch."""

    text: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_ids: (
        TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)] | None
    ) = None
    sampling_params: (
        NativeSampling | Annotated[list[NativeSampling], Field(max_length=MAX_PROMPTS)] | None
    ) = None
    rid: ResultId | Annotated[list[ResultId], Field(max_length=MAX_PROMPTS)] | None = None
    stream: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = Field(default=None, max_length=256)
