"""Owns the identifier types that must not be mixed up; owns no values.

A slot, a node and a token are all integers, and passing one for another corrupts memory silently.
As distinct ``NewType``s the type checker refuses it.
"""

from typing import NewType

RequestId = NewType("RequestId", str)
"""Opaque outside the process that made it; 16 random bytes in hex, never chosen by a client."""

Generation = NewType("Generation", int)
"""Attempt number of a request, from 0. A message of an older generation is dropped."""

TokenId = NewType("TokenId", int)
"""Row of the vocabulary."""

SlotIndex = NewType("SlotIndex", int)
"""Row of the request table. Slot 0 is the padding row and is never handed out."""

NodeId = NewType("NodeId", int)
"""Node of the cache tree. 0 is the root."""

Tick = NewType("Tick", int)
"""Logical time of the cache, advanced by the caller: recency without a clock."""

InstanceId = NewType("InstanceId", str)
"""One life of one process (a pod's UID, or random on a single machine)."""

PeerId = NewType("PeerId", bytes)
"""ROUTER identity of one connected tokenizer process; meaningless after it reconnects."""
