"""Owns how many different experts steps read on a GPU, for benchmarks; chooses none.

How long a step takes goes by the experts whose weights it reads, which only the device knows. Steps
of one token always read as many as are chosen, and are not counted.
"""

import torch


class ExpertTally:
    """Counts on a device; kernels add to them, also in captured steps."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None

    def begin(self, device: torch.device) -> torch.Tensor:
        """New counts [2] int32 for a model on ``device``: experts read, and layers that read."""
        self._counts = torch.zeros(2, dtype=torch.int32, device=device)
        return self._counts

    def take(self) -> tuple[int, int] | None:
        """Experts read, and layers that did, since the last call; waits. None before ``begin``."""
        if self._counts is None:
            return None
        experts, layers = self._counts.tolist()
        self._counts.zero_()
        return experts, layers
