"""Owns made-up weights for benchmarks without a download; reads no files.

A weight is a pure function of its name and the kind of device that makes it up, so every rank and
every start has the same ones. A GPU makes up a thousand times more of them in a second.
"""

import hashlib

import torch

from mizzen_worker.model_executor.weights.progress import ByteProgress


class DummySource:
    """Small normal values (norm weights: ones, biases: zeros)."""

    def __init__(self, progress: ByteProgress, device: torch.device) -> None:
        self._progress = progress
        self._device = device

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``; vectors are norm weights or biases."""
        return torch.zeros(length) if name.endswith(".bias") else torch.ones(length)

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See ``WeightSource``; lies on the device that made it up."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        generator = torch.Generator(self._device).manual_seed(seed)
        weights = torch.randn(rows, columns, generator=generator, device=self._device) * 0.02
        self._progress.add(weights.nbytes)
        return weights
