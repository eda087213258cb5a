"""Owns what a benchmark asks of an engine: prompts, output lengths, their order; pure.

Prompts are token ids, drawn from a generator with a fixed seed, so every engine that is compared
gets the very same ones. Requests of a workload are submitted at once.
"""

import random  # noqa: TID251 - seeded: the same requests everywhere
from dataclasses import dataclass

from mizzen_worker.contracts.ids import TokenId

HIGHEST_ID = 10_000
"""Ids are drawn from 0 to this: inside the vocabulary of every real model."""
_SHORTEST, _LONGEST = 100, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One prompt, and how many tokens to generate for it."""

    prompt_ids: tuple[TokenId, ...]
    num_new: int


def mixed_requests(count: int) -> list[BenchRequest]:
    """Prompts of 100 to 1,024 ids and outputs of 100 to 1,024 tokens, from seed 0."""
    dice = random.Random(0)
    prompts = [_ids(dice, dice.randint(_SHORTEST, _LONGEST)) for _ in range(count)]
    lengths = [dice.randint(_SHORTEST, _LONGEST) for _ in range(count)]
    return [
        BenchRequest(prompt_ids=prompt, num_new=length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


def equal_requests(count: int, *, num_prompt: int, num_new: int, seed: int) -> list[BenchRequest]:
    """Fresh random prompts of one length."""
    dice = random.Random(seed)
    return [BenchRequest(prompt_ids=_ids(dice, num_prompt), num_new=num_new) for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSizes:
    """Groups of requests that begin alike."""

    num_groups: int = 8
    group_size: int = 32
    num_shared: int = 2048
    num_own: int = 128
    num_new: int = 64

    @property
    def best_hit_rate(self) -> float:
        """Share of prompt tokens that need not be computed when each prefix is computed once."""
        total = self.num_groups * self.group_size * (self.num_shared + self.num_own)
        return self.num_groups * (self.group_size - 1) * self.num_shared / total


def prefix_requests(sizes: PrefixSizes, *, is_shuffled: bool) -> list[BenchRequest]:
    """Requests group after group, or in random order; from seed 0."""
    dice = random.Random(0)
    requests = []
    for _ in range(sizes.num_groups):
        shared = _ids(dice, sizes.num_shared)
        requests += [
            BenchRequest(prompt_ids=shared + _ids(dice, sizes.num_own), num_new=sizes.num_new)
            for _ in range(sizes.group_size)
        ]
    if is_shuffled:
        dice.shuffle(requests)
    return requests


def _ids(dice: random.Random, count: int) -> tuple[TokenId, ...]:
    return tuple(TokenId(dice.randint(0, HIGHEST_ID)) for _ in range(count))
