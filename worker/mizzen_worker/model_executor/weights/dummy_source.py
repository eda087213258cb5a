"""Owns made-up weights for benchmarks without a download; reads no files.

A weight is a pure function of its name and of the kind of device it is made on, so every rank and
every start has the same ones.
"""

import hashlib

import torch

from mizzen_worker.model_executor.weights.progress import ByteProgress


class DummySource:
    """Small normal values (norm weights: ones, biases: zeros)."""

    def __init__(self, progress: ByteProgress, device: torch.device) -> None:
        """On a GPU matrices are made there, in bfloat16: a processor takes minutes for them."""
        self._progress = progress
        self._generator = torch.Generator(device)
        self._dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``; vectors are norm weights or biases."""
        return torch.zeros(length) if name.endswith(".bias") else torch.ones(length)

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See ``WeightSource``."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        weights = torch.randn(
            (rows, columns),
            generator=self._generator.manual_seed(seed),
            dtype=self._dtype,
            device=self._generator.device,
        )
        self._progress.add(4 * weights.numel())
        return weights.mul_(0.02)
