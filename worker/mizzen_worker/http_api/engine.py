"""Owns what every route of a front process shares; owns no routes and no sockets.

The Engine object: everything hangs here, nothing is module state, so a test may have several.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mizzen_worker.contracts.errors import (
    PromptTooLongError,
    RequestError,
    UnavailableError,
    UnknownModelError,
)
from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.http_api.access import AccessKeys
from mizzen_worker.http_api.live_requests import LiveRequests
from mizzen_worker.http_api.validation import shown
from mizzen_worker.ipc.launcher_client import LauncherClient
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.observability.tracing import Tracer
from mizzen_worker.tokenizer.chat_template import ChatTemplate
from mizzen_worker.tokenizer.encode import TextEncoder
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.vocabulary.token_bytes import TokenBytes

_WORKER_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of one front process."""

    max_body_bytes: int = 8 * 1024 * 1024
    keep_alive_s: float = 5.0
    worker_wait_s: float = 0.0
    """A new request waits so long for a worker: one that restarts or rolls is back in seconds."""
    body_wait_s: float = 60.0
    """So long a client may take to send its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEngine:
    """One front process; ``wall_clock`` gives Unix seconds, ``random_bits`` fresh random bits."""

    served_name: str
    encoder: TextEncoder
    token_bytes: TokenBytes
    template: ChatTemplate | None
    manager: TokenizerManager
    recorder: Recorder
    limits: HttpLimits
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    random_bits: Callable[[int], int]
    started_at: int
    keys: AccessKeys = field(default_factory=AccessKeys)
    live: LiveRequests = field(default_factory=LiveRequests)
    tracer: Tracer | None = None
    launcher: LauncherClient | None = None
    """Reaches the other front processes; None where there are none."""

    def new_request_id(self) -> RequestId:
        """Draw an id that no client can guess."""
        return RequestId(f"{self.random_bits(128):032x}")

    async def metrics(self) -> str:
        """Give the metrics of all front processes."""
        return self.recorder.text() if self.launcher is None else await self.launcher.metrics()

    def abort_here(self, name: str | None) -> int:
        """End the live requests of a name, or all, of this process; give how many ended."""
        return sum(map(self.manager.abort_by_id, self.live.ids_of(name)))

    async def abort(self, name: str | None) -> int:
        """End the live requests of a name, or all, in every front process; give how many ended."""
        return self.abort_here(name) if self.launcher is None else await self.launcher.abort(name)

    async def num_live_everywhere(self) -> int:
        """Count live requests of all front processes."""
        if self.launcher is None:
            return self.manager.num_live
        return await self.launcher.num_live()

    def seed_of(self, given: int | None) -> int:
        """Give the seed of a request: the client's, or a fresh one."""
        return self.random_bits(63) if given is None else given & ((1 << 63) - 1)

    def check_model(self, name: str) -> None:
        """Raise ``UnknownModelError`` for a model that is not served here."""
        if name != self.served_name:
            msg = f"model {shown(name)} is not served here; this server serves {self.served_name!r}"
            raise UnknownModelError(msg, field="model")

    async def encode(
        self, text: str, *, field: str, add_special_tokens: bool = True
    ) -> tuple[TokenId, ...]:
        """Give the tokens of a prompt; one that cannot fit is refused without the work."""
        (ids,) = await self.encode_all([text], field=field, add_special_tokens=add_special_tokens)
        return ids

    async def encode_all(
        self, texts: Sequence[str], *, field: str, add_special_tokens: bool = True
    ) -> list[tuple[TokenId, ...]]:
        """Give the tokens of each of several prompts."""
        for text in texts:
            self._check_length(text, field)
        return await self.encoder.encode(texts, add_special_tokens=add_special_tokens)

    def _check_length(self, text: str, field: str) -> None:
        capacity = self.manager.workers.capacity()
        if capacity is not None:
            limit = min(capacity.context_length, capacity.kv_tokens)
            least = self.encoder.least_tokens(text)
            if least >= limit:
                msg = (
                    f"{field} has {len(text)} characters, which are at least {least} tokens, and "
                    f"this server's limit is {limit} for prompt and output together; shorten the "
                    "prompt"
                )
                raise PromptTooLongError(msg, field=field)

    def system_fingerprint(self) -> str | None:
        """Name the weights that answer; None while no worker has said."""
        workers = self.manager.workers
        for address in workers.addresses():
            return f"fp_{workers.identity(address).fingerprint.rpartition(':')[2][:16]}"
        return None

    async def wait_for_worker(self) -> None:
        """Wait, within bounds and once a request, until some worker takes requests."""
        ends_at_s = self.clock() + self.limits.worker_wait_s
        while (  # noqa: ASYNC110 - a worker that attaches raises no event
            not self.manager.workers.is_any_accepting and self.clock() < ends_at_s
        ):
            await asyncio.sleep(_WORKER_POLL_S)

    def output_limit(
        self,
        prompt_ids: tuple[TokenId, ...],
        asked: int | None,
        *,
        field: str,
        prompt_field: str,
        default: int | None,
    ) -> int:
        """Decide how many tokens may follow a prompt; the fields are what the client calls them.

        Raises ``PromptTooLongError`` when prompt and output do not fit, ``UnavailableError`` while
        no worker has said how much fits.
        """
        capacity = self.manager.workers.capacity()
        if capacity is None:
            msg = "no worker takes requests at the moment"
            raise UnavailableError(msg)
        num_prompt = len(prompt_ids)
        if num_prompt == 0:
            msg = "the prompt has no tokens; give some text"
            raise RequestError(msg, field=prompt_field)
        limit = min(capacity.context_length, capacity.kv_tokens)
        room = limit - num_prompt
        if room < 1:
            msg = (
                f"the prompt has {num_prompt} tokens and this server's limit is {limit} for prompt "
                "and output together; shorten the prompt"
            )
            raise PromptTooLongError(msg, field=prompt_field)
        if asked is None:
            return room if default is None else min(default, room)
        if asked > room:
            msg = (
                f"{field} is {shown(asked)}, and with the prompt's {num_prompt} tokens that is "
                f"more than this server's limit of {limit}; ask for at most {room}"
            )
            raise PromptTooLongError(msg, field=field)
        return asked
