"""Owns the fields and bounds that bodies of several APIs share; owns no bodies and no meaning.

Strict: "3" is no number, 1.0 is no boolean. Every list ends at its first fault: a body may hold a
million, and one is told. Unknown fields are dropped here; ``misspelling.py`` and
``unserved.py`` look at the raw body for those that must not be.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_PROMPTS = 256
MAX_CHOICES = 128
MAX_SUBREQUESTS = 256
"""Prompts times choices of one HTTP request."""
MAX_TEMPERATURE = 1e6
MAX_INTEGER = 2**31 - 1
"""Largest count, rank or priority: whatever is taken here fits into every message and tensor."""
MAX_TOP_LOGPROBS = 20
MAX_PROMPT_SCORES = 4_000_000
"""Log-probabilities of one request's prompts, alternatives included: all are held at once."""
MAX_BIASED_TOKENS = 1024
MAX_MESSAGES = 16_384
MAX_PARTS = 16_384
"""Messages of a conversation, and text parts of one message: templates walk through them."""
MAX_TIMEOUT_S = 86_400.0

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
StopIds = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]], Field(max_length=64, fail_fast=True)
]
Priority = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Salt = Annotated[str, Field(max_length=256)]
Name = Annotated[str, Field(max_length=256)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]], Field(min_length=1, fail_fast=True)
]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
TokenIdLists = Annotated[
    list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
]
Prompt = str | TokenIds | Texts | TokenIdLists
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]
Bias = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[0-9]{1,10}$")],
        Annotated[float, Field(ge=-100, le=100)],
    ],
    Field(max_length=MAX_BIASED_TOKENS, fail_fast=True),
]


class Body(BaseModel):
    """Lenient in nothing but unknown fields."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Sampling(Body):
    """Fields of every API that say how tokens are chosen and when to stop, by their usual names."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=MAX_INTEGER)
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(default=None, ge=0.001, le=2)
    logit_bias: Bias | None = None
    stop_token_ids: StopIds | None = None
    stop_regex: Stop | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    include_stop_str_in_output: bool | None = None
    """What vLLM calls ``no_stop_trim``; either is enough."""


class Extras(Body):
    """Fields beyond sampling that every generating route takes."""

    priority: Priority | None = None
    cache_salt: Salt | None = None
    timeout_s: Timeout | None = None


class TextPart(Body):
    """A piece of a message; only text is read."""

    type: str
    text: str | None = None


TextParts = Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class StreamOptions(Body):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


TemplateArguments = dict[str, Any]
