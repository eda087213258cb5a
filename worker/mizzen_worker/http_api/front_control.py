"""Owns what a launcher can have one front process do: abort, flush, describe; owns no request."""

from dataclasses import dataclass

from mizzen_worker.contracts.messages import Control, ControlVerb, Reply
from mizzen_worker.http_api.engine import FrontEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontControl:
    """Answers a launcher."""

    engine: FrontEngine

    async def answer(self, control: Control) -> Reply:
        """Do what is asked and tell what came of it."""
        manager = self.engine.manager
        match control.verb:
            case ControlVerb.ABORT:
                ended = self.engine.abort_here(control.arguments.get("request_id"))
                return _done(control, ended=ended)
            case ControlVerb.FLUSH_CACHE:
                return await self._flush(control)
            case ControlVerb.DESCRIBE:
                return _done(
                    control,
                    live_requests=manager.num_live,
                    workers_attached=manager.workers.num_attached,
                )
            case ControlVerb.DRAIN:
                message = "a front process is drained over its line, not by a control"
                return Reply(control_id=control.control_id, is_ok=False, message=message)

    async def _flush(self, control: Control) -> Reply:
        replies = await self.engine.manager.control(ControlVerb.FLUSH_CACHE)
        failed = [f"{where}: {one.message}" for where, one in replies.items() if not one.is_ok]
        if failed:
            message = f"{len(failed)} of {len(replies)} workers did not flush: {'; '.join(failed)}"
            return Reply(control_id=control.control_id, is_ok=False, message=message)
        freed = sum(int(reply.facts.get("freed_kv_tokens", "0")) for reply in replies.values())
        return _done(control, freed_kv_tokens=freed, workers=len(replies))


def _done(control: Control, **facts: int) -> Reply:
    return Reply(
        control_id=control.control_id,
        is_ok=True,
        message="done",
        facts={name: str(value) for name, value in facts.items()},
    )
