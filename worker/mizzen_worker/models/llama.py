"""Owns what Llama 2 and 3 are: grouped-query attention and a SiLU-gated MLP, no biases as released.

``attention_bias`` puts biases on all four projections of attention, ``mlp_bias`` on those of the
MLP. Rotary scaling (linear, Llama 3's) is the rotary table's matter.
"""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule

LLAMA = Architecture(
    name="LlamaForCausalLM",
    gguf_name="llama",
    qkv_bias=Bias.CONFIGURED,
    output_bias=Bias.CONFIGURED,
    mlp_bias=Bias.CONFIGURED,
    has_head_norms=False,
    windows=WindowRule.NONE,
    is_interleaved_in_gguf=True,
)
