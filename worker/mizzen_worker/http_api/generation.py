"""Owns following live requests on behalf of one HTTP request: merge, collect, abort on the way out.

Owns no wire format. Invariant: however the block is left, no request of it stays live.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from mizzen_worker.contracts.errors import InterruptedRequestError, WorkerError
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.tokenizer.request_state import (
    FinalOutput,
    GenerateInput,
    Output,
    RequestState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedOutput:
    """What is new of the request at ``index``; ``output`` None is a sign of life only."""

    index: int
    output: Output | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All of one request's answer."""

    text: str
    token_ids: tuple[int, ...]
    final: FinalOutput


class Generation:
    """The requests of one HTTP request, as an async context."""

    def __init__(self, engine: FrontEngine, inputs: Sequence[GenerateInput]) -> None:
        self._engine = engine
        self._states: list[RequestState] = []
        try:
            for wanted in inputs:
                self._states.append(engine.manager.submit(engine.new_request_id(), wanted))
        except Exception:
            self.abort()
            raise

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Ids of the requests, in order."""
        return tuple(state.request_id for state in self._states)

    async def __aenter__(self) -> "Generation":
        """Begin."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave nothing live."""
        self.abort()

    def abort(self) -> None:
        """End whatever has not ended."""
        for state in self._states:
            self._engine.manager.abort(state)

    async def collect(self) -> list[Collected]:
        """Wait for all answers."""
        return list(await asyncio.gather(*(self._collect(state) for state in self._states)))

    async def outputs(self) -> AsyncIterator[IndexedOutput]:
        """Give what is new of any request until all have ended, with signs of life between."""
        if len(self._states) == 1:
            async for output in self._follow(self._states[0]):
                yield IndexedOutput(index=0, output=output)
            return
        merged: asyncio.Queue[IndexedOutput | WorkerError] = asyncio.Queue(maxsize=1)
        tasks = [
            asyncio.create_task(self._pump(index, state, merged))
            for index, state in enumerate(self._states)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                item = await merged.get()
                if isinstance(item, WorkerError):
                    raise item
                if item.output is not None and item.output.final is not None:
                    num_open -= 1
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, index: int, state: RequestState, merged: "asyncio.Queue[IndexedOutput | WorkerError]"
    ) -> None:
        try:
            async for output in self._follow(state):
                await merged.put(IndexedOutput(index=index, output=output))
        except WorkerError as error:
            await merged.put(error)

    async def _follow(self, state: RequestState) -> AsyncIterator[Output | None]:
        while True:
            output = state.take()
            if output is None:
                if not await state.changed(self._engine.limits.keep_alive_s):
                    yield None
                continue
            final = output.final
            if final is not None and final.kind in {FinishKind.ABORT, FinishKind.ERROR}:
                raise InterruptedRequestError(
                    final.message or "the request was ended by the server; send it again"
                )
            yield output
            if final is not None:
                return

    async def _collect(self, state: RequestState) -> Collected:
        texts: list[str] = []
        token_ids: list[int] = []
        final: FinalOutput | None = None
        async for output in self._follow(state):
            if output is not None:
                texts.append(output.text)
                token_ids.extend(output.token_ids)
                final = output.final or final
        if final is None:
            msg = "the request ended without a result; send it again"
            raise InterruptedRequestError(msg)
        return Collected(text="".join(texts), token_ids=tuple(token_ids), final=final)
