"""Owns the image stores: containerd root folders that outlive the cells, so that images stay.

A store is lent to one node of one cell at a time; the lowest free number is taken, so the next cell
finds the images of the last one. Not here: what containerd keeps in it, images themselves
(image_import.py).

Invariant: whoever uses a store holds its lock.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.folders import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store and the lock that makes it ours."""

    path: Path
    lock: Lock


def take_stores(folder: Path, number: int) -> list[Store]:
    """Take as many free stores as a cell has nodes; new ones are made when all are lent."""
    taken: list[Store] = []
    index = 0
    while len(taken) < number:
        lock = Lock.try_take(folder / f"{index}.lock")
        if lock is not None:
            path = folder / str(index)
            path.mkdir(exist_ok=True)
            taken.append(Store(path=path, lock=lock))
        index += 1
    return taken
