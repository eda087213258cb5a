"""Owns experts on a GPU for every regime: routing, products of the chosen, who adds them up.

Owns no kernel and no choice of tiles. The norm before the router and the experts is folded into
their columns. Nothing looks at a device value: how many tokens an expert has only the device knows.

One token is four launches (router, choice, gate and up, down with the sum). So are more tokens, but
their products are left to be added to the residual; many tokens are sorted by expert in a fifth.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mizzen_worker.kernels.gpu.expert_gemv import down_chosen_add, gated_chosen
from mizzen_worker.kernels.gpu.expert_routing import (
    MAX_EXPERTS,
    Padding,
    choose_experts,
    sort_by_expert,
)
from mizzen_worker.kernels.gpu.gemv import linear
from mizzen_worker.kernels.gpu.grouped_gemm import down_many, gated_many
from mizzen_worker.kernels.gpu.grouped_skinny_gemm import down_few, gated_few
from mizzen_worker.kernels.gpu.launching import has_tensor_copies, shared_memory
from mizzen_worker.kernels.gpu.skinny_gemm import multiply
from mizzen_worker.layers.gpu.expert_tiles import ExpertTiles, FewRows, router_tile, tiles_of
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts

_ALIGNMENT = 16
"""Elements of which hidden and intermediate size must be multiples."""


def reason_against(num_experts: int, hidden_size: int, intermediate_size: int) -> str | None:
    """Why these kernels cannot compute experts of such sizes; None where they can."""
    if num_experts > MAX_EXPERTS:
        return f"{num_experts} experts are more than {MAX_EXPERTS}"
    if hidden_size % _ALIGNMENT or intermediate_size % _ALIGNMENT:
        return (
            f"hidden size {hidden_size} and expert size {intermediate_size} are not both multiples "
            f"of {_ALIGNMENT}"
        )
    return None


def add_experts_of_one(
    hidden: torch.Tensor, experts: Experts[GpuWeight], eps: float, launch: Mapping[str, Any]
) -> torch.Tensor:
    """``hidden`` [1, size] plus the weighted sum of the chosen experts of its RMS norm."""
    tiles = _tiles(experts)
    router = experts.router.values
    logits = torch.empty((1, 1, len(router)), dtype=torch.float32, device=hidden.device)
    linear(hidden, router, None, None, logits, norm_eps=eps, tile=tiles.router_one, launch=launch)
    chosen, weights = _choose(logits, experts, launch)
    activations = gated_chosen(
        hidden,
        experts.gate_up.values,
        chosen,
        weights,
        eps=eps,
        tile=tiles.gated_one,
        launch=launch,
    )
    return down_chosen_add(
        activations, experts.down.values, chosen, hidden, tile=tiles.down_one, launch=launch
    )


def expert_products(
    normed: torch.Tensor,
    experts: Experts[GpuWeight],
    launch: Mapping[str, Any],
    tally: torch.Tensor | None = None,
    padding: Padding | None = None,
) -> torch.Tensor:
    """Products [num_chosen, num_tokens, size] to be added, in this order, to the hidden rows.

    ``normed`` [num_tokens, size] are the hidden rows' RMS norms without a weight. ``tally``: see
    ``ExpertTally``.
    """
    gate_up, down = experts.gate_up.values, experts.down.values
    num_experts, num_chosen = len(gate_up), experts.routing.num_chosen
    if len(normed) == 0:
        return normed.new_empty((num_chosen, *normed.shape))
    logits = _logits(normed, experts.router.values, launch)
    average = len(normed) * num_chosen / num_experts
    choice = _tiles(experts).of(average, has_tensor_copies=has_tensor_copies())
    choice = choice.fitted(shared_memory(), normed.element_size())
    if isinstance(choice, FewRows):
        slots = torch.empty((num_experts, len(normed)), dtype=torch.uint8, device=normed.device)
        _, weights = _choose(logits, experts, launch, padding, slots)
        activations = gated_few(normed, gate_up, weights, slots, choice.gated, launch, tally)
        return down_few(activations, down, num_chosen, slots, choice.down, launch)
    chosen, weights = _choose(logits, experts, launch, padding)
    pairs = sort_by_expert(chosen, num_experts, launch, tally)
    activations = gated_many(normed, gate_up, weights, pairs, choice.gated, launch)
    return down_many(activations, down, num_chosen, pairs, choice.down, launch)


def _logits(normed: torch.Tensor, router: torch.Tensor, launch: Mapping[str, Any]) -> torch.Tensor:
    """[splits, num_tokens, num_experts] float32, to be added up."""
    if not has_tensor_copies():
        return torch.mm(normed.float(), router.float().t()).unsqueeze(0)
    tile = router_tile(len(normed)).fitted(shared_memory(), normed.element_size())
    return multiply(normed, router, tile, dtype=torch.float32, launch=launch)


def _choose(
    logits: torch.Tensor,
    experts: Experts[GpuWeight],
    launch: Mapping[str, Any],
    padding: Padding | None = None,
    slots: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    routing = experts.routing
    return choose_experts(
        logits,
        routing.num_chosen,
        is_normalised=routing.is_normalised,
        launch=launch,
        padding=padding,
        slots=slots,
    )


def _tiles(experts: Experts[GpuWeight]) -> ExpertTiles:
    num_experts, size, inner = experts.down.values.shape
    return tiles_of(num_experts, size, inner)
