"""Owns what a launcher can have one front process do: abort, flush, describe; owns no request."""

from dataclasses import dataclass

from mizzen_worker.contracts.messages import Control, ControlVerb, Reply
from mizzen_worker.http_api.live_requests import LiveRequests
from mizzen_worker.tokenizer.manager import TokenizerManager


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontControl:
    """Answers a launcher."""

    manager: TokenizerManager
    live: LiveRequests

    async def answer(self, control: Control) -> Reply:
        """Do what is asked and tell what came of it."""
        match control.verb:
            case ControlVerb.ABORT:
                name = control.arguments.get("request_id")
                ids = self.live.all_ids() if name is None else self.live.ids_of(name)
                return _done(control, ended=sum(map(self.manager.abort_by_id, ids)))
            case ControlVerb.FLUSH_CACHE:
                return await self._flush(control)
            case ControlVerb.DESCRIBE:
                return _done(
                    control,
                    live_requests=self.manager.num_live,
                    workers_attached=self.manager.workers.num_attached,
                )
            case ControlVerb.DRAIN:
                message = "a front process is drained over its line, not by a control"
                return Reply(control_id=control.control_id, is_ok=False, message=message)

    async def _flush(self, control: Control) -> Reply:
        replies = await self.manager.control(ControlVerb.FLUSH_CACHE)
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
