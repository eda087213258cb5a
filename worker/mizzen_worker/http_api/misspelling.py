"""Owns telling a misspelt field of a body from one that is merely not ours. Pure.

A field nobody knows is ignored, as OpenAI's API does; one that is nearly a known name was meant to
change the answer, and is refused with what was probably meant. Owns no meaning of fields.
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


def refuse_misspelt(names: Iterable[str], served: Collection[str], *, prefix: str = "") -> None:
    """Raise ``RequestError`` for the first unknown name that is close to a known one."""
    known = {*served, *NEUTRAL_VALUES}
    unknown = [name for name in names if name not in known and name not in _OF_OTHER_SERVERS]
    for name in unknown[:_MAX_LOOKED_AT]:
        if len(name) > _MAX_NAME_CHARS:
            continue
        close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_CUTOFF)
        if close:
            msg = f"{prefix}{name} is no parameter of this route; did you mean {prefix}{close[0]}?"
            raise RequestError(msg, field=f"{prefix}{name}")
