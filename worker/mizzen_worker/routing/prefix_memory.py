"""Owns a guess at what each worker's prefix cache holds, from what was sent there. Pure.

Owns no cache and no connection. A prompt is a chain of blocks, each named by a digest of its tokens
and of everything before it, so equal names mean equal beginnings. Invariants: per worker at most
``max_blocks`` names, the least recently sent leave first; of one prompt the end leaves before the
beginning, so that a remembered block always has its remembered beginning.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mizzen_worker.contracts.ids import TokenId

BLOCK_TOKENS = 64
"""Fewer tokens than this in common are not worth a place."""
MAX_BLOCKS = 1024
"""Prompts that agree on so much are taken to be equal: naming more of them takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    """What choosing needs of a prompt; ``key`` names its beginning also where it has no block."""

    num_tokens: int
    key: bytes
    blocks: tuple[bytes, ...]


def prompt_prefix(prompt_ids: Sequence[TokenId], *, salt: str = "") -> PromptPrefix:
    """Name the blocks of a prompt; prompts of different salts have nothing in common."""
    stored = array("q", prompt_ids[: MAX_BLOCKS * BLOCK_TOKENS]).tobytes()
    width = BLOCK_TOKENS * 8
    name = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    blocks: list[bytes] = []
    for start in range(0, len(stored) - width + 1, width):
        name = hashlib.blake2b(stored[start : start + width], key=name, digest_size=16).digest()
        blocks.append(name)
    key = blocks[0] if blocks else hashlib.blake2b(stored, key=name, digest_size=16).digest()
    return PromptPrefix(num_tokens=len(prompt_ids), key=key, blocks=tuple(blocks))


@dataclass(slots=True)
class PrefixMemory:
    """Recently sent blocks by worker. Owned by whoever hands requests out."""

    _blocks: dict[str, OrderedDict[bytes, None]] = field(default_factory=dict)

    def note_sent(self, worker: str, prefix: PromptPrefix, *, max_tokens: int) -> None:
        """Remember a prompt sent to a worker whose cache holds ``max_tokens``."""
        known = self._blocks.setdefault(worker, OrderedDict())
        for name in reversed(prefix.blocks):
            known[name] = None
            known.move_to_end(name)
        while len(known) > max_tokens // BLOCK_TOKENS:
            known.popitem(last=False)

    def num_cached(self, worker: str, prefix: PromptPrefix) -> int:
        """Guess how many tokens of a prompt a worker needs not compute; costs O(blocks in common).

        The last token is always computed.
        """
        known = self._blocks.get(worker)
        if not known:
            return 0
        num_blocks = 0
        for name in prefix.blocks:
            if name not in known:
                break
            num_blocks += 1
        return min(num_blocks * BLOCK_TOKENS, max(0, prefix.num_tokens - 1))

    def forget(self, worker: str) -> None:
        """Drop what was guessed of a worker that is gone or flushed its cache."""
        self._blocks.pop(worker, None)
