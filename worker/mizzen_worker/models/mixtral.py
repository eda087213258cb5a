"""Owns what Mixtral is: Mistral's attention, and experts instead of an MLP in every layer."""

from mizzen_worker.models.architecture import Architecture, Bias, WindowRule
from mizzen_worker.models.expert_names import ExpertNames

MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    gguf_name=None,
    qkv_bias=Bias.NEVER,
    output_bias=Bias.NEVER,
    mlp_bias=Bias.NEVER,
    has_head_norms=False,
    windows=WindowRule.EVERY_LAYER,
    default_theta=1e6,
    experts=ExpertNames(
        block="block_sparse_moe",
        gate="w1",
        up="w3",
        down="w2",
        size_key="intermediate_size",
        default_size=14336,
        count_keys=("num_local_experts",),
        default_count=8,
        default_chosen=2,
        is_normalised=True,
    ),
)
