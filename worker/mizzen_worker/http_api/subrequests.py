"""Owns following live requests on behalf of one HTTP request: merge, collect, abort on the way out.

Owns no wire format. Invariants: however the block is left, no request of it stays live; what a
request produced before it failed is given before its error is raised.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import msgspec

from mizzen_worker.contracts.errors import InterruptedRequestError, WorkerError
from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.messages import TokenLogprob
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.origin import Origin
from mizzen_worker.http_api.refusals import AbortedError, DeadlineError
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
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    final: FinalOutput
    seconds: float


class Subrequests:
    """The requests of one HTTP request, as an async context.

    ``origin`` None is a request of our own. ``names`` are what clients call them beside their ids,
    one for each or one for all. With ``is_prompt_only`` the one token that a worker has to generate
    is not shown to anybody.
    """

    def __init__(
        self,
        engine: FrontEngine,
        inputs: Sequence[GenerateInput],
        origin: Origin | None,
        *,
        names: Sequence[str] = (),
        is_prompt_only: bool = False,
    ) -> None:
        self._engine = engine
        self._origin = origin
        self._is_prompt_only = is_prompt_only
        self._begun_s = engine.clock()
        self._states: list[RequestState] = []
        self._names: list[tuple[str, ...]] = []
        self._pending: list[WorkerError | None] = [None] * len(inputs)
        self._num_open = len(inputs)
        self._merged: asyncio.Queue[IndexedOutput | WorkerError] | None = None
        self._pumps: list[asyncio.Task[None]] = []
        try:
            for index, wanted in enumerate(inputs):
                self._submit(wanted, names[index : index + 1] if len(names) > 1 else names)
        except Exception:
            self.abort()
            raise

    def _submit(self, wanted: GenerateInput, names: Sequence[str]) -> None:
        origin = self._origin
        request_id = self._engine.new_request_id()
        if origin is not None:
            wanted = replace(wanted, log_id=origin.log_id, traceparent=origin.traceparent)
            if origin.is_clients_id:
                names = (origin.log_id, *names)
            elif not self._states:
                request_id = RequestId(origin.log_id)
        self._states.append(self._engine.manager.submit(request_id, wanted))
        self._names.append((request_id, *names))
        self._engine.live.add(request_id, self._names[-1])

    @property
    def request_ids(self) -> tuple[RequestId, ...]:
        """Ids of the requests, in order."""
        return tuple(state.request_id for state in self._states)

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return self._engine.clock() - self._begun_s

    def name(self, name: str) -> None:
        """Give all requests one more name."""
        for index, state in enumerate(self._states):
            self._names[index] = (*self._names[index], name)
            self._engine.live.add(state.request_id, (name,))

    async def __aenter__(self) -> "Subrequests":
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
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def abort(self) -> None:
        """End whatever has not ended."""
        for task in self._pumps:
            task.cancel()
        for state, names in zip(self._states, self._names, strict=False):
            self._engine.manager.abort(state)
            self._engine.live.drop(state.request_id, names)

    async def collect(self) -> list[Collected]:
        """Wait for all answers."""
        return list(await asyncio.gather(*(self._collect(i) for i in range(len(self._states)))))

    async def next(self) -> IndexedOutput | None:
        """Wait for what is new of any request, or a sign of life; None when all have ended."""
        if not self._num_open:
            return None
        if len(self._states) == 1:
            item = IndexedOutput(index=0, output=await self._next_of(0))
        else:
            item = await self._next_merged()
        if item.output is not None and item.output.final is not None:
            self._num_open -= 1
        return item

    async def _next_merged(self) -> IndexedOutput:
        if self._merged is None:
            # One place only: what a slow reader does not take is joined in each state instead.
            self._merged = asyncio.Queue(maxsize=1)
            self._pumps = [
                asyncio.create_task(self._pump(index, self._merged))
                for index in range(len(self._states))
            ]
        item = await self._merged.get()
        if isinstance(item, WorkerError):
            raise item
        return item

    async def _pump(self, index: int, merged: "asyncio.Queue[IndexedOutput | WorkerError]") -> None:
        try:
            output: Output | None = None
            while output is None or output.final is None:
                output = await self._next_of(index)
                await merged.put(IndexedOutput(index=index, output=output))
        except WorkerError as error:
            await merged.put(error)

    async def _next_of(self, index: int) -> Output | None:
        pending = self._pending[index]
        if pending is not None:
            raise pending
        state = self._states[index]
        output = state.take()
        if output is None:
            if not await state.changed(self._engine.limits.keep_alive_s):
                return None
            output = state.take()
            if output is None:
                return None
        if self._is_prompt_only:
            output = _without_output(output)
        if output.final is None:
            return output
        error = _error_of(output.final)
        if error is None:
            return output
        if not output.text and not output.token_ids:
            raise error
        self._pending[index] = error
        return replace(output, final=None)

    async def _collect(self, index: int) -> Collected:
        outputs: list[Output] = []
        final: FinalOutput | None = None
        while final is None:
            output = await self._next_of(index)
            if output is not None:
                outputs.append(output)
                final = output.final
        return Collected(
            text="".join(one.text for one in outputs),
            token_ids=tuple(token_id for one in outputs for token_id in one.token_ids),
            logprobs=tuple(entry for one in outputs for entry in one.logprobs),
            prompt_logprobs=tuple(entry for one in outputs for entry in one.prompt_logprobs),
            final=final,
            seconds=self.seconds,
        )


def _error_of(final: FinalOutput) -> WorkerError | None:
    match final.kind:
        case FinishKind.ABORT:
            return AbortedError(final.message or "the request was ended by the server")
        case FinishKind.DEADLINE:
            msg = "the request's time was up before it was complete; give it more, or ask for less"
            return DeadlineError(msg)
        case FinishKind.ERROR:
            return InterruptedRequestError(
                final.message or "the request was ended by the server; send it again"
            )
        case FinishKind.STOP | FinishKind.LENGTH:
            return None


def _without_output(output: Output) -> Output:
    final = output.final
    if final is not None and final.kind in {FinishKind.STOP, FinishKind.LENGTH}:
        usage = msgspec.structs.replace(final.usage, completion_tokens=0)
        final = replace(final, kind=FinishKind.LENGTH, usage=usage, matched=None)
    return replace(output, text="", token_ids=(), logprobs=(), final=final)
