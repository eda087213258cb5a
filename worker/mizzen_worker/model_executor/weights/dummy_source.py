"""Owns made-up weights for benchmarks without a download; reads no files.

A weight is a pure function of its name, its whole size and of the kind of device it is made on, so
every start has the same ones, and a rank's part is that of the whole.
"""

import hashlib

import torch

from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.weight_source import WHOLE, Part, span


class DummySource:
    """Small normal values (norm weights: ones, biases: zeros)."""

    def __init__(self, progress: ByteProgress, device: torch.device) -> None:
        """On a GPU matrices are made there, in bfloat16: a processor takes minutes for them."""
        self._progress = progress
        self._generator = torch.Generator(device)
        self._dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def vector(self, name: str, length: int, part: range | None = None) -> torch.Tensor:
        """See ``PartialWeightSource``; vectors are norm weights or biases."""
        size = length if part is None else len(part)
        return torch.zeros(size) if name.endswith(".bias") else torch.ones(size)

    def matrix(self, name: str, rows: int, columns: int, part: Part = WHOLE) -> torch.Tensor:
        """See ``PartialWeightSource``; the whole is made up first."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
        weights = torch.randn(
            (rows, columns),
            generator=self._generator.manual_seed(seed),
            dtype=self._dtype,
            device=self._generator.device,
        )
        if part != WHOLE:
            # A copy: a view would keep the whole.
            weights = weights[span(part.rows), span(part.columns)].clone()
        self._progress.add(4 * weights.numel())
        return weights.mul_(0.02)
