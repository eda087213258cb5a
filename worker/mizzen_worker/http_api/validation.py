"""Owns turning what pydantic says into one sentence: field, what is wrong, value, remedy. Pure.

Owns no fields: those not served are ``unserved.py``'s, those nobody knows ``misspelling.py``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mizzen_worker.contracts.errors import RequestError

_MAX_SHOWN_CHARS = 60
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "list", "dict"})
"""A union's branches stand in locations too, by these names or by names of classes."""
_NOUNS = {
    "str": ("a string", "strings"),
    "int": ("an integer", "integers"),
    "float": ("a number", "numbers"),
    "bool": ("a boolean", "booleans"),
}
_ID_FIELDS = frozenset({"prompt", "input_ids", "tokens"})
_LIST, _CONSTRAINED = "list[", "constrained-"


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
    if (wrong := _of_no_form(errors)) is not None:
        return wrong
    first = _most_telling(errors)
    field = field_name(first["loc"])
    value = first.get("input")
    match first["type"]:
        case "missing":
            return RequestError(f"{field} is missing; give it", field=field)
        case "model_attributes_type" | "model_type" | "dict_type":
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


def _of_no_form(errors: Sequence[Mapping[str, Any]]) -> RequestError | None:
    """Make the error for a value that has none of the forms its field takes; None otherwise.

    The item at which the form that went furthest broke off is told.
    """
    places = [_place(error["loc"]) for error in errors]
    root = field_name(places[0][0])
    same = [
        (error, form, indices)
        for error, (loc, form, indices) in zip(errors, places, strict=True)
        if field_name(loc) == root
    ]
    if not all(str(error["type"]).endswith("_type") for error, _, _ in same):
        return None
    forms = [_form_in_words(form, is_of_ids=root in _ID_FIELDS) for _, form, _ in same]
    known = list(dict.fromkeys(form for form in forms if form))
    if len(known) < 2 or not all(forms):
        return None
    error, _, _ = max(same, key=lambda one: (len(one[2]), one[2]))
    field = field_name(error["loc"])
    subject = "it" if field == root else root
    accepted = ", ".join(known[:-1]) + f" or {known[-1]}"
    msg = f"{field} is {shown(error.get('input'))}; {subject} must be {accepted}"
    return RequestError(msg, field=field)


def _place(
    location: tuple[str | int, ...],
) -> tuple[tuple[str | int, ...], str, tuple[int, ...]]:
    """Split a location into its field, the union's branch ("" for none) and the items in that."""
    indices: list[int] = []
    while location and isinstance(last := location[-1], int):
        indices.insert(0, last)
        location = location[:-1]
    if location and isinstance(branch := location[-1], str) and not _is_field(branch):
        return location[:-1], branch, tuple(indices)
    return location, "", tuple(indices)


def _form_in_words(branch: str, *, is_of_ids: bool) -> str:
    """Write a union's branch as a client would, ``list[str]`` as "a list of strings"."""
    depth = branch.count(_LIST)
    item = branch.replace(_LIST, "").rstrip("]").removeprefix(_CONSTRAINED)
    if item not in _NOUNS:
        return ""
    one, several = _NOUNS[item]
    if item == "int" and is_of_ids:
        several = "token ids"
    return one if not depth else "a list of " + "lists of " * (depth - 1) + several


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
