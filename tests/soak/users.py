"""Owns one user's request over HTTP and the judgement of its answer; starts no server.

Every request is counted under exactly one ending. What is wrong with an answer (a token that the
undisturbed server did not give, a second ending, an error status) is kept as a sentence.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.soak.workload import Behaviour, Kind, Wish

_BUSY = {429, 503}
_WANTED_ERRORS = {
    Behaviour.DEADLINE: "time was up",
    Behaviour.ABORT: "administrator ended",
}
_END = "[DONE]"


@dataclass
class Tally:
    """What all users saw."""

    endings: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    faults: list[str] = field(default_factory=list)

    def blame(self, kind: int, what: str) -> None:
        self.faults.append(f"kind {kind}: {what}")


async def read_answer(client: httpx.AsyncClient, kind: Kind) -> tuple[int, ...]:
    """Read one answer to its end, undisturbed."""
    ids: tuple[int, ...] = ()
    async with client.stream("POST", "/generate", json=kind.body()) as got:
        if got.status_code != 200:
            raise RuntimeError(f"{got.status_code}: {(await got.aread()).decode()}")
        async for event in _events(got):
            ids = ids + tuple(event["output_ids"])
    return ids


class User:
    """Sends requests one after the other and judges each."""

    def __init__(
        self,
        *,
        client: httpx.AsyncClient,
        admin: httpx.AsyncClient,
        catalogue: list[Kind],
        answers: list[tuple[int, ...]],
        tally: Tally,
    ) -> None:
        self._client = client
        self._admin = admin
        self._catalogue = catalogue
        self._answers = answers
        self._tally = tally

    async def ask(self, wish: Wish, name: str) -> None:
        """Send one request; its ending is counted once."""
        body = self._catalogue[wish.kind].body() | {"rid": name}
        if wish.behaviour is Behaviour.DEADLINE:
            body["timeout_s"] = wish.deadline_s
        try:
            async with self._client.stream("POST", "/generate", json=body) as got:
                ending = await self._follow(got, wish)
        except httpx.HTTPError as error:
            ending = f"broken: {type(error).__name__}"
            self._tally.blame(wish.kind, f"the connection broke: {error!r}")
        self._tally.endings[ending] += 1
        if ending == "busy":
            await asyncio.sleep(0.5)

    async def _follow(self, got: httpx.Response, wish: Wish) -> str:
        if got.status_code in _BUSY:
            if "retry-after" not in got.headers:
                self._tally.blame(wish.kind, f"{got.status_code} without Retry-After")
            return "busy"
        if got.status_code == 504 and wish.behaviour is Behaviour.DEADLINE:
            return "deadline"
        if got.status_code != 200:
            text = (await got.aread()).decode()
            self._tally.blame(wish.kind, f"status {got.status_code}: {text}")
            return f"status {got.status_code}"
        return await self._read(got, wish)

    async def _read(self, got: httpx.Response, wish: Wish) -> str:
        ids: tuple[int, ...] = ()
        ending: str | None = None
        is_aborted = False
        async for event in _events(got):
            if ending is not None:
                self._tally.blame(wish.kind, f"an event after the end: {event}")
            if "error" in event:
                ending = self._ending_of_error(event, wish)
                continue
            ids += tuple(event["output_ids"])
            self._require_right(wish, ids)
            reason = event["meta_info"].get("finish_reason")
            ending = reason["type"] if reason else None
            if ending is None and len(ids) > wish.after_tokens and not is_aborted:
                if wish.behaviour is Behaviour.LEAVE:
                    return "left"
                if wish.behaviour is Behaviour.ABORT:
                    is_aborted = True
                    await self._admin.post(
                        "/abort_request", json={"rid": got.headers["x-request-id"]}
                    )
        self._tally.tokens += len(ids)
        if ending is None:
            self._tally.blame(wish.kind, f"the stream stopped after {len(ids)} tokens, no ending")
            return "cut"
        if ending in ("stop", "length") and ids != self._answers[wish.kind]:
            self._tally.blame(wish.kind, f"{len(ids)} of {len(self._answers[wish.kind])} tokens")
        return ending

    def _ending_of_error(self, event: dict[str, Any], wish: Wish) -> str:
        text = json.dumps(event)
        wanted = _WANTED_ERRORS.get(wish.behaviour)
        if wanted is not None and wanted in text:
            return wish.behaviour.value
        self._tally.blame(wish.kind, f"error event: {text}")
        return "error"

    def _require_right(self, wish: Wish, ids: tuple[int, ...]) -> None:
        wanted = self._answers[wish.kind]
        if ids != wanted[: len(ids)]:
            at = next((i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), -1)
            self._tally.blame(wish.kind, f"wrong token at {at} of {len(ids)}")


async def _events(got: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in got.aiter_lines():
        data = line.removeprefix("data: ")
        if line.startswith("data: ") and data != _END:
            yield json.loads(data)
