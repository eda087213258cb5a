"""Owns what Qwen 3 (dense) is: Llama's blocks with an RMS norm on every query and key head.

The head size is a number of its own, not hidden size / heads. ``attention_bias``, off in all
releases, puts biases on the four projections of attention.
"""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    gguf_name="qwen3",
    qkv_bias=Bias.CONFIGURED,
    output_bias=Bias.CONFIGURED,
    mlp_bias=Bias.NEVER,
    has_head_norms=True,
    windows=WindowRule.UPPER_LAYERS,
    default_head_dim=128,
    default_window=4096,
)
