"""Owns telling a misspelt field of a body from one that is merely not ours. Pure.

A field nobody knows is ignored, as OpenAI's API does; one that is nearly a known name was meant to
change the answer, and is refused with what was probably meant; so is one in the wrong place or by
another API's name. Owns no meaning of fields.
"""

import difflib
from collections.abc import Collection, Iterable

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.unserved import NEUTRAL_VALUES

_CUTOFF = 0.8
_MAX_NAME_CHARS = 40
_MAX_LOOKED_AT = 32
"""Comparing costs time, and a body may hold a million names: only the first unknown ones count."""

_OF_OTHER_SERVERS = frozenset(
    {
        *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("top_logprobs_num", "logprob_start_len", "return_text_in_logprobs", "return_logprob"),
        *("top_a", "temperature_last", "chat_template"),
    }
)
"""Real names of others that clients send; ignored, though some look like ours."""


_SAME_MEANING = {
    "seed": "sampling_seed",
    "sampling_seed": "seed",
    "stop_sequences": "stop",
    "stop": "stop_sequences",
    "max_tokens": "max_new_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_new_tokens",
}
"""Names of one API to what another calls the same."""


def refuse_misspelt(names: Iterable[str], served: Collection[str], *, prefix: str = "") -> None:
    """Raise ``RequestError`` for the first unknown name that is close to a known one."""
    known = {*served, *NEUTRAL_VALUES}
    unknown = [name for name in names if name not in known and name not in _OF_OTHER_SERVERS]
    for name in unknown[:_MAX_LOOKED_AT]:
        meant = _meant(name, known)
        if meant is not None:
            msg = f"{prefix}{name} is no parameter of this route; did you mean {prefix}{meant}?"
            raise RequestError(msg, field=f"{prefix}{name}")


def refuse_misplaced(names: Iterable[str], served: Collection[str], inner: Collection[str]) -> None:
    """Raise ``RequestError`` for the first name that only ``sampling_params`` has."""
    for name in names:
        meant = name if name in inner else _SAME_MEANING.get(name)
        if name not in served and meant in inner:
            msg = f"{name} stands outside of sampling_params; give sampling_params.{meant}"
            raise RequestError(msg, field=name)


def _meant(name: str, known: Collection[str]) -> str | None:
    same = _SAME_MEANING.get(name)
    if same in known:
        return same
    if len(name) > _MAX_NAME_CHARS:
        return None
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_CUTOFF)
    return close[0] if close else None
