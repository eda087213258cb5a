"""Owns what tells one decoder from another, as one frozen value; computes nothing.

Each file beside this one states such a value for its architecture. The readers of checkpoints take
their defaults from it, ``dense_decoder`` its blocks.
"""

import enum
from dataclasses import dataclass

from mizzen_worker.models.expert_names import ExpertNames


class Bias(enum.Enum):
    """Whether a projection has a bias: CONFIGURED leaves it to the checkpoint."""

    NEVER = "never"
    ALWAYS = "always"
    CONFIGURED = "configured"

    def holds(self, *, is_configured: bool) -> bool:
        """Tell whether there is one, given what the checkpoint says."""
        return self is Bias.ALWAYS or (self is Bias.CONFIGURED and is_configured)


class WindowRule(enum.Enum):
    """Which layers see a sliding window of positions, where the checkpoint names one.

    EVERY_LAYER_IF_USED: only if ``use_sliding_window``. UPPER_LAYERS: likewise, and only those from
    ``max_window_layers`` on (or those that ``layer_types`` lists).
    """

    NONE = "none"
    EVERY_LAYER = "every layer"
    EVERY_LAYER_IF_USED = "every layer if used"
    UPPER_LAYERS = "upper layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One decoder: embedding, attention and gated MLP (or experts) behind RMS norms, head.

    ``name`` is the checkpoint's word in ``architectures``. ``gguf_name`` is None where GGUF files
    use another architecture's name; ``is_interleaved_in_gguf`` says that such files hold the rows
    of query and key heads in pairs. ``default_head_dim`` None means hidden size / heads;
    ``default_window`` and ``default_theta`` count where a config.json leaves them out. ``experts``
    None means a dense MLP in every layer.
    """

    name: str
    gguf_name: str | None
    qkv_bias: Bias
    output_bias: Bias
    mlp_bias: Bias
    has_head_norms: bool
    windows: WindowRule
    is_interleaved_in_gguf: bool = False
    default_head_dim: int | None = None
    default_window: int | None = None
    default_theta: float = 10000.0
    experts: ExpertNames | None = None
