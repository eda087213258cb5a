"""Owns the meaning of what follows a query/key/value projection; knows no page."""

import torch

from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary import rotate


def rotated_heads(
    projected: torch.Tensor,
    num_heads: tuple[int, int],
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each [tokens, heads, head_dim].

    ``projected`` [tokens, (heads + 2 KV heads) * head_dim], ``num_heads`` (heads, KV heads),
    ``norms`` (of query heads, of key heads, eps) or None, ``table`` as of ``rotate``.
    """
    heads, kv_heads = num_heads
    by_head = projected.view(len(projected), heads + 2 * kv_heads, -1)
    queries, rest = by_head[:, :heads], by_head[:, heads:]
    keys, values = rest[:, :kv_heads], rest[:, kv_heads:]
    if norms is not None:
        query_norm, key_norm, eps = norms
        queries, keys = rms_norm(queries, query_norm, eps), rms_norm(keys, key_norm, eps)
    return rotate(queries, table), rotate(keys, table), values
