"""Owns messages of any API → the text of a prompt; owns no tokens and no templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.openai_requests import ChatMessage
from mizzen_worker.http_api.request_fields import TextPart

Plain = dict[str, Any]
"""A message as templates know it: a role and a text."""


def render(
    engine: FrontEngine,
    messages: Sequence[Plain],
    *,
    arguments: Mapping[str, Any] | None = None,
    is_last_continued: bool = False,
    has_generation_prompt: bool = True,
) -> str:
    """Give the prompt; a last message that is continued stands at its end, without its end mark."""
    if engine.template is None:
        msg = f"{engine.served_name} has no chat template; use /v1/completions"
        raise RequestError(msg, field="messages")
    if not is_last_continued:
        return engine.template.render(
            messages, add_generation_prompt=has_generation_prompt, arguments=arguments
        )
    if messages[-1]["role"] != "assistant":
        msg = (
            "continue_final_message is True and the last message is not the assistant's; leave it "
            "out, or end with what the answer begins with"
        )
        raise RequestError(msg, field="continue_final_message")
    before = messages[:-1]
    if not before:
        msg = "messages holds nothing before the answer that is to be continued; begin with a user"
        raise RequestError(msg, field="messages")
    return engine.template.render(before, arguments=arguments) + str(messages[-1]["content"])


def plain_chat(messages: Sequence[ChatMessage]) -> list[Plain]:
    """Give OpenAI's messages as templates know them."""
    return [_plain(message, index) for index, message in enumerate(messages)]


def _plain(message: ChatMessage, index: int) -> Plain:
    role = "system" if message.role == "developer" else message.role
    extra = message.model_extra or {}
    for name in ("tool_calls", "function_call", "audio"):
        if extra.get(name):
            field = f"messages[{index}].{name}"
            msg = f"{field} is not served: this server has no tools and no sound; leave it out"
            raise RequestError(msg, field=field)
    return {"role": role, "content": text_of(message.content, f"messages[{index}].content")}


def text_of(content: str | Sequence[TextPart] | None, field: str) -> str:
    """Join the text parts of a message; raises ``RequestError`` for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for place, part in enumerate(content):
        part_field = f"{field}[{place}]"
        if part.type != "text":
            msg = f"{part_field}.type is {part.type!r}; this model reads text only"
            raise RequestError(msg, field=f"{part_field}.type")
        if part.text is None:
            msg = f"{part_field}.text is missing; give it"
            raise RequestError(msg, field=f"{part_field}.text")
        texts.append(part.text)
    return "".join(texts)
