"""Owns administrative verbs on their way to workers and the replies awaited; owns no requests."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mizzen_worker.contracts.messages import Control, ControlVerb, Reply, ToWorker

_REPLY_WAIT_S = 10.0


@dataclass(slots=True, kw_only=True)
class WorkerControl:
    """Asks workers; every question gets one reply, be it that none came."""

    send: Callable[[str, ToWorker], bool]
    _num_asked: int = 0
    _awaited: dict[tuple[str, int], asyncio.Future[Reply]] = field(default_factory=dict)

    async def ask(
        self, address: str, verb: ControlVerb, arguments: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a verb and wait for the answer; a reply that is not ok says why none came."""
        self._num_asked += 1
        control_id = self._num_asked
        control = Control(control_id=control_id, verb=verb, arguments=dict(arguments or {}))
        if not self.send(address, control):
            return _refusal(control_id, "the worker cannot be reached now")
        awaited: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._awaited[address, control_id] = awaited
        try:
            async with asyncio.timeout(_REPLY_WAIT_S):
                return await awaited
        except TimeoutError:
            return _refusal(control_id, f"the worker did not answer within {_REPLY_WAIT_S:.0f} s")
        finally:
            self._awaited.pop((address, control_id), None)

    def take(self, address: str, reply: Reply) -> None:
        """Hand a worker's reply to who waits for it."""
        awaited = self._awaited.get((address, reply.control_id))
        if awaited is not None and not awaited.done():
            awaited.set_result(reply)

    def note_lost(self, address: str) -> None:
        """Answer for a worker that is gone."""
        for (asked, control_id), awaited in self._awaited.items():
            if asked == address and not awaited.done():
                awaited.set_result(_refusal(control_id, "the worker was lost before it answered"))


def _refusal(control_id: int, message: str) -> Reply:
    return Reply(control_id=control_id, is_ok=False, message=message)
