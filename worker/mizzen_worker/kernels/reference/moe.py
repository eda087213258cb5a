"""Owns what routing to experts and their weighted sum mean, in plain torch; knows no kernel.

Ties between router logits go to the lower expert. A NaN counts as the lowest logit, so that the
chosen experts are always distinct, but makes all weights of its token NaN.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)


def choose_experts(
    logits: torch.Tensor, num_chosen: int, *, is_normalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts int64 and weights float32, both [num_tokens, num_chosen], best first.

    ``logits`` [num_tokens, num_experts]. Weights are a softmax over all experts, or over the chosen
    ones if ``is_normalised``.
    """
    wide = logits.float()
    ranked = wide.masked_fill(wide.isnan(), -torch.inf)
    chosen = ranked.argsort(dim=-1, descending=True, stable=True)[:, :num_chosen]
    weights = wide.softmax(dim=-1).gather(1, chosen)
    if is_normalised:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return chosen, weights


def mix_experts(
    inputs: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum of the chosen experts' gated MLPs: [num_tokens, hidden] in the inputs' dtype.

    ``inputs`` [num_tokens, hidden]; ``gate_up`` [experts, 2 * inner, hidden], gate rows first;
    ``down`` [experts, hidden, inner]; ``chosen`` and ``weights`` as of ``choose_experts``.
    """
    mixed = torch.zeros(inputs.shape, dtype=torch.float32, device=inputs.device)
    for expert in sorted(set(chosen.flatten().tolist())):
        tokens, slots = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(inputs[tokens], gate_up[expert]).chunk(2, dim=-1)
        output = F.linear(F.silu(gate) * up, down[expert])
        mixed.index_add_(0, tokens, output.float() * weights[tokens, slots, None])
    return mixed.to(inputs.dtype)


def sort_by_expert(chosen: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (token, slot) sorted by expert, in order within one: int32 order and offsets.

    ``order`` [num_pairs] holds pairs as ``token * num_chosen + slot``; those of expert e are
    ``order[offsets[e] : offsets[e + 1]]``.
    """
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=num_experts)
    offsets = torch.zeros(num_experts + 1, dtype=torch.int32, device=chosen.device)
    offsets[1:] = counts.cumsum(0)
    return flat.argsort(stable=True).int(), offsets
