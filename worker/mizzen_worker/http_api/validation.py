"""Owns turning what pydantic says into one sentence: field, what is wrong, value, remedy. Pure.

Owns no fields: those not served are ``unserved.py``'s, those nobody knows ``misspelling.py``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mizzen_worker.contracts.errors import RequestError

_MAX_SHOWN_CHARS = 60
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict"})
"""A union's branches stand in locations too, by these names or by names of classes."""


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
        case "too_short":
            return RequestError(f"{field} is {shown(value)}; give at least one entry", field=field)
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
    if location[-1:] == ("[key]",):
        location = location[:-2]  # the client's own word, of any length
    for part in location:
        if part == "body" and not name:
            continue
        if isinstance(part, int):
            name += f"[{part}]"
        elif _is_field(part):
            name += f".{part}" if name else part
    return name


def _is_field(part: str) -> bool:
    is_short = len(part) <= _MAX_SHOWN_CHARS
    return is_short and part.isidentifier() and part.islower() and part not in _TYPE_NAMES


def shown(value: Any) -> str:
    """Show a short value; longer ones may be somebody's text and are only described."""
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"a string of {len(value)} characters"
    if isinstance(value, list | dict) and len(value) > _MAX_SHOWN_CHARS:
        return f"a {type(value).__name__}"
    text = repr(value)
    if isinstance(value, int) and len(text) > _MAX_SHOWN_CHARS:
        return f"a number of {len(text)} digits"
    return text if len(text) <= _MAX_SHOWN_CHARS else f"a {type(value).__name__}"
