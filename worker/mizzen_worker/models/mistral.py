"""Owns what Mistral is: Llama's blocks without biases, all layers with one sliding window.

Later releases have ``sliding_window`` null and see everything. GGUF files call it ``llama``.
"""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule

MISTRAL = Architecture(
    name="MistralForCausalLM",
    gguf_name=None,
    qkv_bias=Bias.NEVER,
    output_bias=Bias.NEVER,
    mlp_bias=Bias.NEVER,
    has_head_norms=False,
    windows=WindowRule.EVERY_LAYER,
    default_window=4096,
)
