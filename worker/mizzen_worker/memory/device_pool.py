"""Owns the device memory of keys and values; hands out no pages and knows no request.

Layout per layer: ``[num_pages + 1, page_size, num_kv_heads, head_dim]``. Page 0 is the sink:
masked rows write there and nobody reads it with effect. Invariant: the tensors never move.

One allocation holds all layers, and all of it begins as zeros: whoever reads beyond a row's end and
masks what it read meets no NaN of memory that another tensor had before (0 * NaN is NaN). On a
GPU that is a few tens of milliseconds for a hundred GiB.
"""

from collections.abc import Sequence
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

    @property
    def page_values(self) -> int:
        """Values of one page, keys and values of all layers together."""
        return 2 * self.num_layers * self.page_size * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class KvScale:
    """What the stored keys and values of a layer are multiplied with; 1 but in an FP8 pool."""

    key: float = 1.0
    value: float = 1.0


_UNSCALED = KvScale()


class DevicePool:
    """Keys and values of every layer."""

    def __init__(
        self,
        shape: PoolShape,
        dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[KvScale] = (),
    ) -> None:
        """``scales`` by layer; none: all are 1."""
        if len(scales) not in (0, shape.num_layers):
            message = f"{len(scales)} scales of keys and values for {shape.num_layers} layers"
            raise ValueError(message)
        self.shape = shape
        self._scales = tuple(scales)
        positions = (shape.num_pages + 1) * shape.page_size
        size = (shape.num_layers, 2, positions, shape.num_kv_heads, shape.head_dim)
        self._keys, self._values = torch.zeros(size, dtype=dtype, device=device).unbind(1)

    def keys(self, layer: int) -> torch.Tensor:
        """[positions, num_kv_heads, head_dim]: position = page * page_size + offset. A view."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """Like ``keys``."""
        return self._values[layer]

    def scale(self, layer: int) -> KvScale:
        """See ``KvScale``."""
        return self._scales[layer] if self._scales else _UNSCALED
