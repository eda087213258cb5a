"""Owns the order of tokens by logit: the largest first, equal ones by id; chooses none."""

import torch


def best_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, vocab] float32 to values [n, count] and ids [n, count] int64, the best of each row.

    A row's result depends on that row alone. Rows with NaN give ids of no meaning, in range.
    """
    vocab_size = logits.shape[1]
    if count >= vocab_size:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    if logits.device.type == "cpu":
        values, ids = logits.topk(count + 1)
        is_cut_clean = bool((values[:, count - 1 : count] > values[:, count:]).all())
        values, ids = values[:, :count], ids[:, :count]
        if not is_cut_clean:
            ids = _with_lowest_ids(logits, values, ids)
    else:
        values, ids = logits.topk(count)
        ids = _with_lowest_ids(logits, values, ids)
    ascending, order = ids.sort(dim=-1)
    sorted_values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return sorted_values, ascending.gather(1, order)


def _with_lowest_ids(logits: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Of the tokens that equal the last one, those with the lowest ids: topk takes any of them."""
    vocab_size, count = logits.shape[1], values.shape[1]
    last = values[:, -1:]
    index = torch.arange(vocab_size, dtype=torch.int32, device=logits.device)
    tied = index.expand_as(logits).masked_fill(logits != last, vocab_size - 1)
    lowest = tied.topk(count, largest=False).values
    is_above = values > last
    place = torch.arange(count, device=logits.device) - is_above.sum(-1, keepdim=True)
    return torch.where(is_above, ids, lowest.long().gather(1, place.clamp(min=0)))
