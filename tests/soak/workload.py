"""Owns what the soak asks for: a finite catalogue of requests and a user's random behaviour; pure.

A request is one of few *kinds*, so that each answer can be known beforehand from a server that is
left in peace. Same seed, same workload.
"""

import enum
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One request of the catalogue, as the native API takes it."""

    input_ids: tuple[int, ...]
    sampling: tuple[tuple[str, float | int | bool], ...]

    def body(self) -> dict[str, object]:
        """Give the request's body, streamed."""
        sampling = dict(self.sampling)
        return {
            "input_ids": list(self.input_ids),
            "sampling_params": sampling,
            "stream": True,
            "stream_output": "delta",
        }


class Behaviour(enum.Enum):
    """What a user does with a request."""

    READ = "read"
    LEAVE = "leave"
    ABORT = "abort"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A kind and a behaviour; ``after_tokens`` says when a user leaves or has it aborted."""

    kind: int
    behaviour: Behaviour
    after_tokens: int
    deadline_s: float


def make_catalogue(rng: np.random.Generator, count: int, vocab_size: int) -> list[Kind]:
    """Draw kinds of mixed lengths; a third of them share one of three prefixes."""
    prefixes = [_ids(rng, 96, vocab_size) for _ in range(3)]
    return [_make_kind(rng, index, prefixes, vocab_size) for index in range(count)]


def make_wish(rng: np.random.Generator, num_kinds: int) -> Wish:
    """Draw what the next user does."""
    weights = {
        Behaviour.READ: 0.64,
        Behaviour.LEAVE: 0.12,
        Behaviour.ABORT: 0.12,
        Behaviour.DEADLINE: 0.12,
    }
    behaviour = list(weights)[int(rng.choice(len(weights), p=list(weights.values())))]
    return Wish(
        kind=int(rng.integers(num_kinds)),
        behaviour=behaviour,
        after_tokens=int(rng.integers(0, 12)),
        deadline_s=float(rng.uniform(0.02, 0.6)),
    )


def _make_kind(
    rng: np.random.Generator, index: int, prefixes: list[tuple[int, ...]], vocab_size: int
) -> Kind:
    length = int(np.exp(rng.uniform(0, np.log(300))))
    ids = _ids(rng, max(1, length), vocab_size)
    if index % 3 == 0:
        ids = prefixes[int(rng.integers(len(prefixes)))] + ids
    sampling: list[tuple[str, float | int | bool]] = [
        # Most are short, so that the long ones outgrow what was predicted.
        ("max_new_tokens", int(rng.integers(150, 400) if index % 6 == 1 else rng.integers(2, 24))),
        ("temperature", 0.0 if index % 2 else 0.8),
        ("sampling_seed", index),
        ("ignore_eos", index % 4 != 0),
    ]
    if index % 5 == 0:
        sampling += [("top_p", 0.9), ("top_k", 40)]
    if index % 7 == 0:
        sampling += [("repetition_penalty", 1.2), ("frequency_penalty", 0.3)]
    return Kind(input_ids=ids, sampling=tuple(sampling))


def _ids(rng: np.random.Generator, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.integers(3, vocab_size - 8, count).tolist())
