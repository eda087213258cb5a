"""Owns the meaning of attention of one token; of pages only, where a row's positions lie."""

import torch


def attend_one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float | None = None,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one token over the positions it may see.

    ``query`` [num_heads, head_dim], ``keys`` and ``values`` [length, num_kv_heads, head_dim];
    head h reads KV head h // (num_heads / num_kv_heads). ``scale`` None is head_dim ** -0.5;
    ``soft_cap`` > 0 bounds scores to cap * tanh(score / cap); ``sinks`` [num_heads] is a logit per
    head that takes its part of the softmax and has no value. Computed in float32, returned in the
    dtype of ``query``; zeros where nothing is seen.
    """
    num_heads, head_dim = query.shape
    group_size = num_heads // keys.shape[1]
    output = torch.zeros_like(query)
    for head in range(num_heads if len(keys) else 0):
        head_keys = keys[:, head // group_size].float()
        head_values = values[:, head // group_size].float()
        scores = head_keys @ query[head].float() * (head_dim**-0.5 if scale is None else scale)
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        if sinks is not None:
            scores = torch.cat([scores, sinks[head : head + 1].float()])
        weights = torch.softmax(scores, dim=0)[: len(head_values)]
        output[head] = (weights @ head_values).to(query.dtype)
    return output


def visible_locations(
    pages: torch.Tensor, length: int, *, page_size: int, window: int | None = None
) -> torch.Tensor:
    """[n] int64: where the positions lie that the last token of a row sees.

    ``pages`` [>= length / page_size] integers: the row's pages in order. With a ``window`` the
    token sees itself and the ``window - 1`` positions before it.
    """
    first = 0 if window is None else max(0, length - window)
    positions = torch.arange(first, length, device=pages.device)
    return pages[positions // page_size].long() * page_size + positions % page_size
