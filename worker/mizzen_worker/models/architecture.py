"""Owns what tells one dense decoder from another, as one frozen value; computes nothing.

Each file beside this one states such a value for its architecture. The readers of checkpoints take
their defaults from it, ``dense_decoder`` its blocks.
"""

import enum
from dataclasses import dataclass


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

    UPPER_LAYERS: only if ``use_sliding_window``, those from ``max_window_layers`` on (or those that
    ``layer_types`` lists).
    """

    NONE = "none"
    EVERY_LAYER = "every layer"
    UPPER_LAYERS = "upper layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One dense decoder: embedding, attention and gated MLP behind RMS norms, head.

    ``name`` is the checkpoint's word in ``architectures``. ``gguf_name`` is None where GGUF files
    use another architecture's name; ``is_interleaved_in_gguf`` says that such files hold the rows
    of query and key heads in pairs. ``default_head_dim`` None means hidden size / heads;
    ``default_window`` counts where ``sliding_window`` is left out of a config.json.
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
