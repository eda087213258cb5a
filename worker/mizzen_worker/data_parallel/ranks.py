"""Owns what is known about the ranks behind one worker address, and what they come to together.

Owns no connections and no requests. Implements ``ConnectionListener`` for the controller's own
connection to each rank. A rank that is missing counts as full: the worker's capacity stays what it
was announced to be.
"""

import logging
from collections.abc import Callable, Collection, Sequence

from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Capacity,
    Heartbeat,
    Hello,
    Load,
    Submit,
    ToTokenizer,
)
from mizzen_worker.routing.prefix_memory import prompt_prefix
from mizzen_worker.routing.worker_choice import choose_worker
from mizzen_worker.routing.workers import Workers

logger = logging.getLogger(__name__)


class Ranks:
    """Knows every rank by its address; ``on_rank_lost`` is told when one is gone."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        instance_id: InstanceId,
        on_rank_lost: Callable[[str], None],
    ) -> None:
        self.addresses = tuple(addresses)
        self._instance_id = instance_id
        self._on_rank_lost = on_rank_lost
        self._hello: Hello | None = None
        self._workers = Workers(tokenizer_fingerprint="")

    @property
    def num_attached(self) -> int:
        """Ranks that take messages."""
        return self._workers.num_attached

    def on_attached(self, address: str, hello: Hello) -> None:
        """See ``ConnectionListener``."""
        if self._hello is None:
            self._workers = Workers(tokenizer_fingerprint=hello.identity.tokenizer)
        self._hello = hello
        self._workers.attach(address, hello)
        logger.info("rank attached", extra={"rank": address})

    def on_message(self, address: str, message: ToTokenizer) -> None:
        """See ``ConnectionListener``."""
        if isinstance(message, Heartbeat) and message.load is not None:
            self._workers.update(address, message.load)

    def on_lost(self, address: str, reason: str) -> None:
        """See ``ConnectionListener``."""
        self._workers.drop(address)
        logger.warning("rank lost", extra={"rank": address, "reason": reason})
        self._on_rank_lost(address)

    def choose(self, submit: Submit, excluded: Collection[str]) -> str | None:
        """Choose the rank of a request and count the request there; None when no rank takes it."""
        prefix = prompt_prefix(submit.prompt_ids, salt=submit.cache_salt)
        address = choose_worker(
            self._workers.views(), prefix=prefix, memory=self._workers.memory, excluded=excluded
        )
        if address is not None:
            self._workers.note_arrival(address, prefix, len(submit.generated_ids))
        return address

    def note_departure(self, address: str) -> None:
        """Count a request out again."""
        self._workers.note_departure(address)

    def hello(self) -> Hello | None:
        """Give what the worker says of itself; None before any rank has said so."""
        one = self._hello
        if one is None:
            return None
        num_ranks = len(self.addresses)
        capacity = one.capacity
        return Hello(
            wire_version=WIRE_VERSION,
            instance_id=self._instance_id,
            identity=one.identity,
            capacity=Capacity(
                max_running_requests=capacity.max_running_requests * num_ranks,
                max_queued_requests=capacity.max_queued_requests * num_ranks,
                kv_tokens=capacity.kv_tokens * num_ranks,
                # A request runs on one rank, in that rank's memory.
                context_length=min(capacity.context_length, capacity.kv_tokens),
            ),
            load=self.load(),
        )

    def load(self) -> Load:
        """Add the loads up."""
        loads = self._workers.loads()
        capacity = None if self._hello is None else self._hello.capacity
        num_missing = len(self.addresses) - len(loads)
        lacking_requests = 0 if capacity is None else num_missing * capacity.max_running_requests
        lacking_tokens = 0 if capacity is None else num_missing * capacity.kv_tokens
        return Load(
            running_requests=sum(load.running_requests for load in loads) + lacking_requests,
            queued_requests=sum(load.queued_requests for load in loads),
            kv_tokens_used=sum(load.kv_tokens_used for load in loads) + lacking_tokens,
            is_draining=all(load.is_draining for load in loads),
            queued_tokens=sum(load.queued_tokens for load in loads),
        )
