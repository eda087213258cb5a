"""Owns what the ranks of a tensor-parallel group tell each other; owns no sockets and no arrays.

Rank 0, the leader, decides; the others replay what they are told. A runner is changed by launching
and settling steps only, so that ``Step`` is the one order of execution there is: another way to
change a runner needs another message here. Arrays are little-endian int32 bytes. Field order is the
wire: add at the end, and raise ``RANK_WIRE_VERSION`` where an older rank cannot do without.
"""

import msgspec

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.ids import RequestId, SlotIndex, TokenId
from mizzen_worker.contracts.request import SamplingParams

RANK_WIRE_VERSION = 2


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """To the leader, until it answers: who wants to join, and what must be the same on all ranks.

    ``agreed`` holds the model's fingerprint and every flag that shapes a step, by name.
    """

    wire_version: int
    group_id: str
    epoch: str
    rank: int
    size: int
    agreed: dict[str, str]


class Waiting(msgspec.Struct, frozen=True, array_like=True, tag="waiting"):
    """To who wants to join: not yet, and why."""

    reason: str


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """To every follower, once all are there: this life of the group has begun.

    ``life`` is random; the collectives of two lives never meet. Their store listens at
    ``store_port`` of ``store_host``, an address: the leader's name may have had another before.
    """

    life: str
    store_port: int
    store_host: str


class Sizes(msgspec.Struct, frozen=True, array_like=True):
    """A runner's limits: equal on all ranks but for ``num_pages``, of which the least counts."""

    max_slots: int
    num_pages: int
    page_size: int
    context_length: int
    vocab_size: int


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """To the leader: this rank's runner is ready."""

    sizes: Sizes


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """To every follower: all ranks are loaded, steps follow."""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Either way: this process is not frozen, whatever its loop does."""


class RowPlan(msgspec.Struct, frozen=True, array_like=True):
    """An ``ExtendRow``."""

    request_id: RequestId
    slot: SlotIndex
    start: int
    num_new: int
    token_ids: bytes
    is_sampled: bool
    target_start: int
    target_ids: bytes | None


class SlotPlan(msgspec.Struct, frozen=True, array_like=True):
    """A ``SlotInit``."""

    slot: SlotIndex
    sampling: SamplingParams
    num_prompt_tokens: int
    num_generated_tokens: int
    eos_token_ids: tuple[TokenId, ...]
    max_tokens: int
    history: bytes | None


class PagePlan(msgspec.Struct, frozen=True, array_like=True):
    """A ``PageWrite``."""

    slot: SlotIndex
    first_page: int
    pages: bytes


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """To every follower: a ``ScheduleBatch`` to launch. ``groups``: first row, count, tokens.

    ``num_settled`` steps the leader had settled when it launched this one. So must a follower have:
    a plan reuses slots and pages of settled steps only.
    """

    step: int
    extends: tuple[RowPlan, ...]
    slots: bytes
    starts: bytes
    groups: tuple[tuple[int, int, int], ...]
    slot_inits: tuple[SlotPlan, ...]
    page_writes: tuple[PagePlan, ...]
    num_settled: int


class Replayed(msgspec.Struct, frozen=True, array_like=True, tag="replayed"):
    """To the leader: how many steps this rank has launched since the group began."""

    num_steps: int


class DrainWish(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """To the leader: this rank's pod ends, so drain the whole group."""

    mode: DrainMode
    deadline_s: float


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag="farewell"):
    """From the leader: all is drained, end with success; from a follower: heard."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Either way: the peer is not, or no longer, a rank of this group; ``reason`` says why."""

    reason: str


ToFollower = Waiting | Welcome | Begin | Beat | Step | Farewell | Ended
ToLeader = Hello | Loaded | Beat | Replayed | DrainWish | Farewell | Ended
