"""Owns what is known of a model without its weights. Pure.

Facts come from a GGUF's metadata or a ``config.json``; see ``model_executor/weights``.
"""

from dataclasses import dataclass

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.layers.rotary_config import RotaryConfig

MAX_SIZE = 2**31 - 1
MAX_LAYERS = 4096
"""Beyond these a file is damaged: memory is taken for each layer before weights are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Sizes and routing of the experts; ``layers`` are those that have them, the rest are dense.

    ``is_normalised``: the weights of a token's chosen experts add up to 1.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    is_normalised: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder; ``intermediate_size`` is of its dense layers."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    experts: ExpertShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model on disk.

    ``fingerprint`` names its scheme: ``sha256:...`` covers every byte of the weight files,
    ``sampled-sha256:...`` (files above 1 GiB) their headers, sizes and evenly spaced windows.
    The tokenizer is not the model's matter: ``vocabulary`` fingerprints it. ``windows`` has one
    entry per layer: how many positions a token sees, itself included; None means all.
    ``fp8_scales``: matrices of layers are stored as FP8 with scales of ``rows`` or ``blocks``.
    ``has_fp8_kv``: the model was made for keys and values of FP8.
    """

    architecture: str
    shape: ModelShape
    rotary: RotaryConfig
    rms_norm_eps: float
    context_length: int
    tie_embeddings: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[TokenId, ...]
    fingerprint: str
    fp8_scales: str | None = None
    has_fp8_kv: bool = False
