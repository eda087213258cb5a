"""Owns the arithmetic from bytes and shapes to pages; measures nothing and allocates nothing."""

from dataclasses import dataclass

from mizzen_worker.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What one token costs in the KV pool of one rank."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Key and value of every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.element_bytes


def pool_bytes(shape: KvShape, *, num_pages: int, page_size: int) -> int:
    """Bytes of a pool of ``num_pages`` usable pages, the sink page 0 included."""
    return shape.bytes_per_token * page_size * (num_pages + 1)


def pages_in_budget(shape: KvShape, *, budget_bytes: int, page_size: int) -> int:
    """Usable pages that fit ``budget_bytes`` together with the sink page."""
    page_bytes = shape.bytes_per_token * page_size
    num_pages = budget_bytes // page_bytes - 1
    if num_pages < 1:
        message = (
            f"KV memory: {budget_bytes} bytes hold no page ({page_bytes} bytes each, and one is "
            f"the sink); give at least {2 * page_bytes} bytes or a smaller --page-size"
        )
        raise ConfigError(message)
    return num_pages


def pages_for_tokens(num_tokens: int, *, page_size: int) -> int:
    """Pages that hold ``num_tokens`` positions."""
    return -(-num_tokens // page_size)
