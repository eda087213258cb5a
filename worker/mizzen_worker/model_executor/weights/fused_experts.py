"""Owns where an expert's matrix lies in files that keep all experts of a layer in one tensor.

transformers writes such files when asked to save its own form: ``mlp.experts.gate_up_proj``
[experts, 2 * inner, hidden], gate rows first, ``mlp.experts.down_proj`` [experts, hidden, inner],
and the router under ``mlp.gate.weight`` whatever the architecture calls it.
"""

import re
from dataclasses import dataclass

_EXPERT = re.compile(r"(.+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_ROUTER = re.compile(r"(.+)\.block_sparse_moe\.gate\.weight")
_PART_BY_NAME = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": None, "w2": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPlace:
    """A matrix inside the tensor ``name``.

    ``expert`` None: the whole tensor. ``part`` 0 or 1: the first or second half of the expert's
    rows; None: all of them.
    """

    name: str
    expert: int | None = None
    part: int | None = None


def fused_place(name: str) -> FusedPlace | None:
    """The place of a matrix by its canonical name, None for one that has no other."""
    router = _ROUTER.fullmatch(name)
    if router is not None:
        return FusedPlace(name=f"{router[1]}.mlp.gate.weight")
    expert = _EXPERT.fullmatch(name)
    if expert is None or expert[3] not in _PART_BY_NAME:
        return None
    part = _PART_BY_NAME[expert[3]]
    fused = "down_proj" if part is None else "gate_up_proj"
    return FusedPlace(name=f"{expert[1]}.mlp.experts.{fused}", expert=int(expert[2]), part=part)
