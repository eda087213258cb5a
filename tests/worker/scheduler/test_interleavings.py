"""Several peers do anything in any order, on any sizes and policies; see ``interleavings.py``."""

import itertools
import random
from collections import Counter

import pytest
from tests.scale import count
from tests.worker.scheduler.interleavings import Interleaving

from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.schedule_policy import SchedulePolicy

_WORLDS = list(itertools.product((False, True), SchedulePolicy, CacheEviction, (1, 2, 4, 16, 64)))
random.Random(5).shuffle(_WORLDS)
_NUM_PLAYS = count(check=20, full=2 * len(_WORLDS))
_WANTED = (
    "end by stop", "end by length", "end by abort", "end by deadline", "end by error",
    "handed_back_requests", "cached_tokens", "supersede", "repeat", "steal", "lose_peer",
    "abort_wrongly", "control",
)  # fmt: skip


@pytest.mark.timeout(900)
def test_every_attempt_ends_once_with_the_tokens_of_the_reference() -> None:
    """20 plays in a check; in a full test every policy, eviction order, page size and overlap."""
    events: Counter[str] = Counter()
    for seed in range(_NUM_PLAYS):
        is_overlapped, policy, eviction, page_size = _WORLDS[seed % len(_WORLDS)]
        play = Interleaving(
            seed=seed,
            is_overlapped=is_overlapped,
            policy=policy,
            eviction=eviction,
            page_size=page_size,
        )
        play.play(60)
        play.drain()
        events += play.events
    print(f"\n{_NUM_PLAYS} plays: {dict(sorted(events.items()))}")
    assert not [name for name in _WANTED if not events[name]], events
