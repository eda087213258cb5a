"""Owns the arithmetic of a GPU's memory: what is left for keys and values; measures nothing. Pure.

All sizes are bytes. What a rank may fill is a share of the whole GPU; weights, the largest step and
graphs come first, and one KV pool takes the rest.
"""

from dataclasses import dataclass

from mizzen_worker.contracts.errors import ConfigError, ModelLoadError

GIB = 1 << 30


def kv_token_bytes(*, num_layers: int, num_kv_heads: int, head_dim: int, value_bytes: int) -> int:
    """Keys and values of one position in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a GPU has, and what is taken or set aside before keys and values.

    ``other_bytes``: CUDA itself, its libraries, and other processes on the same GPU.
    """

    total_bytes: int
    fraction: float
    weights_bytes: int
    other_bytes: int
    step_bytes: int
    graphs_bytes: int

    @property
    def left_bytes(self) -> int:
        """What keys and values may take; below 0 where there is too little without them."""
        taken = self.weights_bytes + self.other_bytes + self.step_bytes + self.graphs_bytes
        return int(self.total_bytes * self.fraction) - taken

    def describe(self) -> str:
        """The sum in words, in GiB."""
        parts = (
            ("weights", self.weights_bytes),
            ("CUDA and other processes", self.other_bytes),
            ("the largest step", self.step_bytes),
            ("graphs", self.graphs_bytes),
        )
        taken = ", ".join(f"{name} {_gib(size)}" for name, size in parts)
        return (
            f"of {_gib(self.total_bytes)} GiB --memory-fraction {self.fraction:g} allows "
            f"{_gib(int(self.total_bytes * self.fraction))}: {taken}; left for KV "
            f"{_gib(self.left_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSizes:
    """One page: its positions, and its bytes over all layers."""

    page_size: int
    page_bytes: int


def pages_that_fit(use: MemoryUse, page: PageSizes) -> int:
    """Pages beside the sink, which takes one too; 0 or less where there is no room."""
    return use.left_bytes // page.page_bytes - 1


def choose_num_pages(use: MemoryUse, page: PageSizes, kv_tokens: int | None) -> int:
    """Pages of the pool: all that fit, or those of ``kv_tokens`` positions.

    Raises ``ConfigError`` for more positions than fit, ``ModelLoadError`` where none does.
    """
    most = pages_that_fit(use, page)
    if most < 1:
        message = (
            f"the GPU has no room for KV memory: {use.describe()} GiB; lower --max-chunk-tokens or "
            "--max-running-requests, raise --memory-fraction, or take a GPU with more memory"
        )
        raise ModelLoadError(message)
    if kv_tokens is None:
        return most
    wanted = kv_tokens // page.page_size
    if wanted > most:
        message = (
            f"--kv-tokens: {kv_tokens} positions take {_gib((wanted + 1) * page.page_bytes)} GiB; "
            f"{use.describe()} GiB, room for {most * page.page_size} positions; lower it to that, "
            "or leave it to auto"
        )
        raise ConfigError(message)
    return wanted


def require_room_for_weights(*, weights_bytes: int, free_bytes: int, dtype: str) -> None:
    """Raise ``ModelLoadError`` for weights that cannot fit, before any is read."""
    if weights_bytes > free_bytes:
        message = (
            f"weights take {_gib(weights_bytes)} GiB in {dtype} and the GPU has "
            f"{_gib(free_bytes)} GiB free; take a smaller model or a GPU with more memory"
        )
        raise ModelLoadError(message)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
