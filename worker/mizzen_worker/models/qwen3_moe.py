"""Owns what Qwen 3's mixtures of experts are: Qwen 3's attention, and experts in most layers.

``decoder_sparse_step`` and ``mlp_only_layers`` say which layers have experts, the others have a
dense MLP. A window, where a checkpoint turns it on, holds in every layer.
"""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule
from mizzen_worker.models.expert_names import ExpertNames

QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    gguf_name=None,
    qkv_bias=Bias.CONFIGURED,
    output_bias=Bias.CONFIGURED,
    mlp_bias=Bias.NEVER,
    has_head_norms=True,
    windows=WindowRule.EVERY_LAYER_IF_USED,
    default_window=4096,
    experts=ExpertNames(
        block="mlp",
        gate="gate_proj",
        up="up_proj",
        down="down_proj",
        size_key="moe_intermediate_size",
        default_size=768,
        count_keys=("num_experts", "num_local_experts"),
        default_count=128,
        default_chosen=8,
        is_normalised=None,
    ),
)
