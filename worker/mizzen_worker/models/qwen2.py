"""Owns what Qwen 2 and 2.5 are: Llama's blocks with biases on query, key and value projections.

Windows, where a checkpoint turns them on, begin at layer ``max_window_layers``.
"""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    gguf_name="qwen2",
    qkv_bias=Bias.ALWAYS,
    output_bias=Bias.NEVER,
    mlp_bias=Bias.NEVER,
    has_head_norms=False,
    windows=WindowRule.UPPER_LAYERS,
    default_window=4096,
)
