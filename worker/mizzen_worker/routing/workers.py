"""Owns what is known of each attached worker, by who hands requests out; owns no connections. Pure.

Invariant: ``num_ours`` of a worker is the number of our requests submitted there and not ended
or taken back; an address that is not attached has none, and nothing is remembered as sent there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from mizzen_worker.contracts.messages import Capacity, Hello, Load, ModelIdentity
from mizzen_worker.routing.prefix_memory import PrefixMemory, PromptPrefix
from mizzen_worker.routing.worker_choice import WorkerView


@dataclass(slots=True, kw_only=True)
class _Worker:
    hello: Hello
    load: Load
    is_refused: bool
    num_ours: int = 0
    num_sent_tokens: int = 0
    """Sent since the worker last told its load, and not part of that."""


@dataclass(slots=True, kw_only=True)
class Workers:
    """Attached workers by address. Owned by a TokenizerManager, or by a controller of ranks."""

    tokenizer_fingerprint: str
    memory: PrefixMemory = field(default_factory=PrefixMemory)
    """What was sent where; changed by this class only."""
    _workers: dict[str, _Worker] = field(default_factory=dict)

    def attach(self, address: str, hello: Hello) -> bool:
        """Note a worker; False when its vocabulary is another than ours."""
        is_refused = hello.identity.tokenizer != self.tokenizer_fingerprint
        self._workers[address] = _Worker(hello=hello, load=hello.load, is_refused=is_refused)
        return not is_refused

    def update(self, address: str, load: Load) -> None:
        """Note a worker's own count of what it does."""
        known = self._workers.get(address)
        if known is not None:
            known.load = load
            known.num_sent_tokens = 0

    def note_draining(self, address: str) -> None:
        """Send nothing more to a worker that said it drains."""
        known = self._workers.get(address)
        if known is not None:
            known.load = msgspec.structs.replace(known.load, is_draining=True)

    def drop(self, address: str) -> None:
        """Forget a worker."""
        self._workers.pop(address, None)
        self.memory.forget(address)

    def note_arrival(self, address: str, prefix: PromptPrefix, num_generated: int) -> None:
        """Count a request of ours that was submitted to an attached worker."""
        known = self._workers[address]
        num_cached = self.memory.num_cached(address, prefix)
        known.num_ours += 1
        known.num_sent_tokens += prefix.num_tokens + num_generated - num_cached
        self.memory.note_sent(address, prefix, max_tokens=known.hello.capacity.kv_tokens)

    def note_departure(self, address: str) -> None:
        """Count a request of ours out again; no effect for a worker that is gone."""
        known = self._workers.get(address)
        if known is not None:
            known.num_ours -= 1

    def identity(self, address: str) -> ModelIdentity:
        """Give what an attached worker serves."""
        return self._workers[address].hello.identity

    def views(self) -> Iterator[WorkerView]:
        """Give each usable worker as choosing sees it."""
        for address, known in self._workers.items():
            if known.is_refused:
                continue
            reported = known.load.running_requests + known.load.queued_requests
            yield WorkerView(
                address=address,
                num_live=max(reported, known.num_ours),
                queued_tokens=known.load.queued_tokens + known.num_sent_tokens,
                max_running=known.hello.capacity.max_running_requests,
                is_accepting=not known.load.is_draining,
                resume_identity=known.hello.identity.resume_identity,
            )

    @property
    def is_any_accepting(self) -> bool:
        """Whether new work can go anywhere."""
        return any(view.is_accepting for view in self.views())

    def addresses(self) -> tuple[str, ...]:
        """Give where the attached workers are."""
        return tuple(self._workers)

    @property
    def num_queued(self) -> int:
        """Requests that wait at usable workers, by what those say."""
        return sum(
            known.load.queued_requests for known in self._workers.values() if not known.is_refused
        )

    @property
    def num_attached(self) -> int:
        """Workers connected, usable or not."""
        return len(self._workers)

    def loads(self) -> list[Load]:
        """Give what each attached worker said it does."""
        return [known.load for known in self._workers.values()]

    def capacity(self) -> Capacity | None:
        """Give what every usable worker can take; None while there is none."""
        found = [known.hello.capacity for known in self._workers.values() if not known.is_refused]
        if not found:
            return None
        return Capacity(
            max_running_requests=sum(capacity.max_running_requests for capacity in found),
            max_queued_requests=sum(capacity.max_queued_requests for capacity in found),
            kv_tokens=min(capacity.kv_tokens for capacity in found),
            context_length=min(capacity.context_length for capacity in found),
        )
