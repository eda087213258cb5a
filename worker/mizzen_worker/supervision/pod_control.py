"""Owns what the admin port can have done beside draining: abort, flush, describe; owns no process.

Answers say what happened: how many requests ended, how much was freed, who did not answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mizzen_worker import __version__
from mizzen_worker.contracts.messages import ControlVerb, Reply

KIND_FRONT, KIND_RANK, KIND_CONTROLLER = "front", "rank", "controller"


class Processes(Protocol):
    """Who is asked."""

    def process_ids(self) -> Mapping[str, int | None]:
        """Give the process ids by name."""
        ...

    async def ask(
        self, kind: str, verb: ControlVerb, arguments: dict[str, str]
    ) -> Mapping[str, Reply | None]:
        """Ask every process of a kind; None for one that does not answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP status and the facts to tell."""

    status: int
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodControl:
    """Acts on all processes of a pod. ``facts`` stand in every description."""

    processes: Processes
    has_fronts: bool
    has_ranks: bool
    facts: Mapping[str, str]

    async def abort(self, rid: str | None) -> Answer:
        """End the live requests of a name, or all, wherever they are held."""
        kind = KIND_FRONT if self.has_fronts else KIND_RANK
        arguments = {} if rid is None else {"request_id": rid}
        replies = await self.processes.ask(kind, ControlVerb.ABORT, arguments)
        num_aborted = _sum(replies, "ended")
        facts = {"num_aborted": num_aborted, "unanswered": _silent(replies)}
        if _silent(replies):
            return Answer(status=503, facts=facts)
        is_found = num_aborted > 0 or rid is None
        return Answer(status=200 if is_found else 404, facts=facts)

    async def flush_cache(self) -> Answer:
        """Empty the prefix caches of what no request uses."""
        kind = KIND_RANK if self.has_ranks else KIND_FRONT
        replies = await self.processes.ask(kind, ControlVerb.FLUSH_CACHE, {})
        facts = {
            "freed_kv_tokens": _sum(replies, "freed_kv_tokens"),
            "flushed": sum(1 for reply in replies.values() if reply is not None and reply.is_ok),
            "unanswered": _silent(replies),
        }
        return Answer(status=503 if facts["unanswered"] else 200, facts=facts)

    async def describe(self) -> Answer:
        """Tell what this is and what each process says of itself."""
        told: dict[str, Reply | None] = {}
        for kind in (KIND_FRONT, KIND_CONTROLLER, KIND_RANK):
            told.update(await self.processes.ask(kind, ControlVerb.DESCRIBE, {}))
        processes = {
            name: {"pid": pid, **_facts(told.get(name))}
            for name, pid in self.processes.process_ids().items()
        }
        return Answer(
            status=200, facts={"version": __version__, **self.facts, "processes": processes}
        )


def _sum(replies: Mapping[str, Reply | None], fact: str) -> int:
    return sum(int(_facts(reply).get(fact, "0")) for reply in replies.values())


def _silent(replies: Mapping[str, Reply | None]) -> list[str]:
    return [name for name, reply in replies.items() if reply is None or not reply.is_ok]


def _facts(reply: Reply | None) -> Mapping[str, str]:
    return reply.facts if reply is not None and reply.is_ok else {}
