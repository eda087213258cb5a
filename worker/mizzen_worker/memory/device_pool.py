"""Owns the device memory of keys and values; hands out no pages and knows no request.

Layout per layer: ``[num_pages + 1, page_size, num_kv_heads, head_dim]``. Page 0 is the sink:
masked rows write there and nobody reads it with effect. Invariant: the tensors never move.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Sizes of a pool; ``num_pages`` does not count the sink."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int


class DevicePool:
    """Keys and values of every layer."""

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        size = (shape.num_pages + 1, shape.page_size, shape.num_kv_heads, shape.head_dim)
        self._keys = [
            torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
        ]
        self._values = [
            torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)
        ]

    def keys(self, layer: int) -> torch.Tensor:
        """[positions, num_kv_heads, head_dim]: position = page * page_size + offset. A view."""
        return self._keys[layer].flatten(0, 1)

    def values(self, layer: int) -> torch.Tensor:
        """Like ``keys``."""
        return self._values[layer].flatten(0, 1)
