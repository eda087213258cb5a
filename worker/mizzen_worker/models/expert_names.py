"""Owns where a checkpoint's config.json and tensors name what belongs to experts; reads none."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Words of one architecture.

    Tensors are ``model.layers.L.BLOCK.gate.weight`` (the router) and
    ``model.layers.L.BLOCK.experts.E.NAME.weight`` with the names of gate, up and down projection.
    ``size_key`` and ``count_keys`` are keys of config.json, with what holds where they are absent;
    ``is_normalised`` None leaves it to ``norm_topk_prob``.
    """

    block: str
    gate: str
    up: str
    down: str
    size_key: str
    default_size: int
    count_keys: tuple[str, ...]
    default_count: int
    default_chosen: int
    is_normalised: bool | None
