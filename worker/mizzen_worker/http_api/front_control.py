"""Owns what a launcher can have one front process do: abort, flush, describe; owns no request."""

from dataclasses import dataclass

from mizzen_worker.contracts.admin_answers import flushed_of
from mizzen_worker.contracts.messages import Control, ControlVerb, Fact, Reply
from mizzen_worker.http_api.engine import FrontEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontControl:
    """Answers a launcher."""

    engine: FrontEngine

    async def answer(self, control: Control) -> Reply:
        """Do what is asked and tell what came of it."""
        match control.verb:
            case ControlVerb.ABORT:
                ended = self.engine.abort_here(control.arguments.get("request_id"))
                return _done(control, ended=ended)
            case ControlVerb.FLUSH_CACHE:
                return await self._flush(control)
            case ControlVerb.DESCRIBE:
                return self._described(control)
            case ControlVerb.DRAIN:
                message = "a front process is drained over its line, not by a control"
                return _refused(control, message)

    def _described(self, control: Control) -> Reply:
        manager = self.engine.manager
        capacity = manager.workers.capacity()
        sizes: dict[str, Fact] = {}
        if capacity is not None:
            sizes["kv_tokens_total"] = capacity.kv_tokens
            sizes["context_length"] = capacity.context_length
        return _done(
            control,
            live_requests=manager.num_live,
            workers_attached=manager.workers.num_attached,
            **sizes,
        )

    async def _flush(self, control: Control) -> Reply:
        replies = await self.engine.manager.control(ControlVerb.FLUSH_CACHE)
        if not replies:
            return _refused(control, "no worker is attached at the moment")
        done = flushed_of(replies)
        if done.failed:
            failed = "; ".join(f"{where}: {why}" for where, why in done.failed.items())
            message = f"{len(done.failed)} of {len(replies)} workers did not flush: {failed}"
            return _refused(control, message)
        return _done(control, freed_kv_tokens=done.freed_kv_tokens, workers=len(replies))


def _done(control: Control, **facts: Fact) -> Reply:
    return Reply(control_id=control.control_id, is_ok=True, message="done", facts=facts)


def _refused(control: Control, message: str) -> Reply:
    return Reply(control_id=control.control_id, is_ok=False, message=message)
