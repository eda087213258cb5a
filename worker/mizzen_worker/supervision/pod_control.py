"""Owns what the admin port can have done beside draining: abort, flush, describe; owns no process.

Answers say what happened: how many requests ended, how much was freed, who did not answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mizzen_worker import __version__
from mizzen_worker.contracts.admin_answers import (
    Flushed,
    ServerInfo,
    flushed_of,
    numbers_of,
    problem_of,
    sum_of,
    told_by,
)
from mizzen_worker.contracts.messages import ControlVerb, Reply
from mizzen_worker.supervision.health import PodHealth

KIND_FRONT, KIND_RANK, KIND_CONTROLLER = "front", "rank", "controller"
KIND_FOLLOWER = "follower"
"""A rank that replays what its leader, of ``KIND_RANK``, decides; asked, it names the leader."""


class Processes(Protocol):
    """Who is asked."""

    def process_ids(self) -> Mapping[str, int | None]:
        """Give the process ids by name."""
        ...

    def health(self) -> PodHealth:
        """Judge the pod now."""
        ...

    async def ask(
        self, kind: str, verb: ControlVerb, arguments: dict[str, str]
    ) -> Mapping[str, Reply | None]:
        """Ask every process of a kind; None for one that does not answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP status and what to tell."""

    status: int
    told: Flushed | ServerInfo | Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodControl:
    """Acts on all processes of a pod. ``started_at`` is in Unix seconds."""

    processes: Processes
    has_fronts: bool
    has_ranks: bool
    served_name: str
    started_at: int

    async def abort(self, rid: str | None) -> Answer:
        """End the live requests of a name, or all, wherever they are held."""
        kind = KIND_FRONT if self.has_fronts else self._rank_kind
        arguments = {} if rid is None else {"request_id": rid}
        replies = await self.processes.ask(kind, ControlVerb.ABORT, arguments)
        num_aborted = sum_of(replies, "ended")
        told = {"num_aborted": num_aborted, "unanswered": _silent(replies)}
        if _silent(replies):
            return Answer(status=503, told=told)
        is_found = num_aborted > 0 or rid is None
        return Answer(status=200 if is_found else 404, told=told)

    async def flush_cache(self) -> Answer:
        """Empty the prefix caches of what no request uses."""
        kind = KIND_FRONT if self.has_fronts and not self.has_ranks else self._rank_kind
        replies = await self.processes.ask(kind, ControlVerb.FLUSH_CACHE, {})
        done = flushed_of(replies)
        return Answer(status=503 if done.failed else 200, told=done)

    async def describe(self) -> Answer:
        """Tell what this is and what each process says of itself."""
        by_kind = {
            kind: await self.processes.ask(kind, ControlVerb.DESCRIBE, {})
            for kind in (KIND_FRONT, KIND_CONTROLLER, KIND_RANK)
        }
        told = {name: told_by(one) for replies in by_kind.values() for name, one in replies.items()}
        requests = by_kind[KIND_FRONT if self.has_fronts else KIND_RANK]
        sizes = numbers_of(requests, "kv_tokens_total")
        return Answer(
            status=200,
            told=ServerInfo(
                version=__version__,
                served_model_name=self.served_name,
                status="ready" if self.processes.health().why_not_ready is None else "not ready",
                live_requests=sum_of(requests, "live_requests"),
                started_at=self.started_at,
                max_total_num_tokens=self._total(sizes),
                context_length=min(numbers_of(requests, "context_length"), default=None),
                processes={
                    name: {"pid": pid, **told.get(name, {})}
                    for name, pid in self.processes.process_ids().items()
                },
            ),
        )

    @property
    def _rank_kind(self) -> str:
        """Further nodes of a group have no rank that decides."""
        return KIND_RANK if self.has_ranks else KIND_FOLLOWER

    def _total(self, sizes: list[int]) -> int | None:
        """Each front tells of all there is, each rank of its own."""
        if not sizes:
            return None
        return min(sizes) if self.has_fronts else sum(sizes)


def _silent(replies: Mapping[str, Reply | None]) -> list[str]:
    return [name for name, reply in replies.items() if problem_of(reply) is not None]
