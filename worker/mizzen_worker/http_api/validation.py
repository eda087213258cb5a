"""Owns turning what pydantic says into one sentence: field, what is wrong, value, remedy. Pure.

Also owns which fields are known but not served yet: with a value that would change the answer they
are refused by name, never ignored. Fields nobody knows are ``misspelling.py``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mizzen_worker.contracts.errors import RequestError

_MAX_SHOWN_CHARS = 60
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict"})
"""A union's branches stand in locations too, by these names or by names of classes."""

NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "regex": ("",),
    "ebnf": ("",),
    "json_schema": ("",),
    "structural_tag": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "stop_regex": ("", []),
    "lora_path": ("",),
    "input_embeds": (),
    "image_data": ([],),
    "audio_data": ([],),
    "video_data": ([],),
    "return_logprob": (False,),
    "return_hidden_states": (False,),
    "session_params": (),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "use_beam_search": (False,),
    "prompt_embeds": (),
}
"""Fields not served: the values that mean what happens anyway. ``None`` is always one of them."""


def refuse_unserved(body: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raise ``RequestError`` for the first field whose meaning would be lost."""
    for name, neutral in NEUTRAL_VALUES.items():
        value = body.get(name)
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            continue
        if isinstance(value, float) and value in neutral:
            continue
        msg = (
            f"{prefix}{name} is {shown(value)}, which this server does not serve yet; leave it out"
        )
        raise RequestError(
            msg,
            field=f"{prefix}{name}",
        )


def at_most(value: int | None, limit: int, *, field: str, limit_field: str) -> int:
    """Give a least number of tokens, 0 when absent; raises ``RequestError`` above the limit."""
    if value is not None and value > limit:
        msg = (
            f"{field} is {shown(value)}, more than the {limit} tokens that {limit_field} and the "
            "context allow; lower it"
        )
        raise RequestError(msg, field=field)
    return value or 0


def sentence_of(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """Make the error for a body that pydantic refused; the first finding is told."""
    first = _most_telling(errors)
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it does not parse")
        return RequestError(f"the body is no JSON: {reason}; send a JSON object")
    field = field_name(first["loc"])
    value = first.get("input")
    match first["type"]:
        case "missing":
            return RequestError(f"{field} is missing; give it", field=field)
        case "model_attributes_type" | "dict_type":
            return RequestError(
                f"{field or 'the body'} is {shown(value)}; it must be a JSON object",
                field=field or None,
            )
        case "value_error":
            reason = str(first.get("ctx", {}).get("error", first["msg"]))
            return RequestError(f"{field}: {reason}", field=field)
    reason = str(first["msg"])
    reason = reason[:1].lower() + reason[1:]
    return RequestError(f"{field} is {shown(value)}: {reason}", field=field)


def _most_telling(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Choose among a union's findings the one of the branch whose type the value has."""
    root = field_name(errors[0]["loc"]).partition("[")[0]
    same = [error for error in errors if field_name(error["loc"]).partition("[")[0] == root]
    fitting = [error for error in same if not str(error["type"]).endswith("_type")]
    return (fitting or same)[0]


def field_name(location: Sequence[str | int]) -> str:
    """Write a location as a client would: ``messages[0].content``."""
    name = ""
    for part in location:
        if part == "body" and not name:
            continue
        if isinstance(part, int):
            name += f"[{part}]"
        elif not part.isidentifier() or not part.islower() or part in _TYPE_NAMES:
            continue
        else:
            name += f".{part}" if name else part
    return name


def shown(value: Any) -> str:
    """Show a short value; longer ones may be somebody's text and are only described."""
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"a string of {len(value)} characters"
    text = repr(value)
    if isinstance(value, int) and len(text) > _MAX_SHOWN_CHARS:
        return f"a number of {len(text)} digits"
    return text if len(text) <= _MAX_SHOWN_CHARS else f"a {type(value).__name__}"
