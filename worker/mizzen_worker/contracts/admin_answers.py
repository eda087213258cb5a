"""Owns what administrative routes answer, the same on the admin port and on the public one.

Owns no route: the admin port asks the processes of its pod, the public port its workers.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from mizzen_worker.contracts.messages import Fact, Reply

_SILENT = "it did not answer"


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """How much was freed, how many who were asked did it, and why the others did not, by name."""

    freed_kv_tokens: int
    flushed: int
    failed: dict[str, str]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here, and what each process says of itself: by name, or a worker by its address."""

    version: str
    served_model_name: str
    status: Literal["ready", "not ready"]
    live_requests: int
    started_at: int
    max_total_num_tokens: int | None
    context_length: int | None
    processes: dict[str, dict[str, Fact | None]]


def flushed_of(replies: Mapping[str, Reply | None]) -> Flushed:
    """Add up what was said to FLUSH_CACHE; None is who said nothing."""
    problems = {name: problem_of(reply) for name, reply in replies.items()}
    failed = {name: problem for name, problem in problems.items() if problem is not None}
    return Flushed(
        freed_kv_tokens=sum_of(replies, "freed_kv_tokens"),
        flushed=len(replies) - len(failed),
        failed=failed,
    )


def told_by(reply: Reply | None) -> dict[str, Fact | None]:
    """Give what a process says of itself, or why it does not."""
    problem = problem_of(reply)
    if reply is None or problem is not None:
        return {"error": problem}
    return {**reply.facts}


def problem_of(reply: Reply | None) -> str | None:
    """Say why something was not done; None where it was."""
    if reply is None:
        return _SILENT
    return None if reply.is_ok else reply.message


def numbers_of(replies: Mapping[str, Reply | None], fact: str) -> list[int]:
    """Give a whole number as each says it who says it."""
    given = [one.facts.get(fact) for one in replies.values() if one is not None and one.is_ok]
    return [one for one in given if isinstance(one, int)]


def sum_of(replies: Mapping[str, Reply | None], fact: str) -> int:
    """Add up what they say."""
    return sum(numbers_of(replies, fact))
