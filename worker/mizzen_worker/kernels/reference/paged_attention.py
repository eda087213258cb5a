"""Owns the meaning of attention of one token; knows no pages (the caller gathers)."""

import torch


def attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one token over the positions it may see.

    ``query`` [num_heads, head_dim], ``keys`` and ``values`` [length, num_kv_heads, head_dim];
    head h reads KV head h // (num_heads / num_kv_heads). Computed in float32, returned in the
    dtype of ``query``.
    """
    num_heads, head_dim = query.shape
    group_size = num_heads // keys.shape[1]
    output = torch.empty_like(query)
    for head in range(num_heads):
        head_keys = keys[:, head // group_size].float()
        head_values = values[:, head // group_size].float()
        scores = head_keys @ query[head].float() * head_dim**-0.5
        output[head] = (torch.softmax(scores, dim=0) @ head_values).to(query.dtype)
    return output
