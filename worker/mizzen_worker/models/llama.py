"""Owns the Llama architecture (grouped-query attention, SiLU gate, RMS norms) as fused operations.

Knows no kernel, regime, page or device.
"""

from dataclasses import dataclass
from typing import Generic

from mizzen_worker.layers.operations import Operations, V, W, WeightPreparer
from mizzen_worker.models.model_facts import ModelFacts, ModelShape
from mizzen_worker.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer(Generic[W]):
    """Weights of one decoder layer."""

    attention_norm: W
    qkv: W
    output: W
    mlp_norm: W
    gate_up: W
    down: W


def _build_layer(
    layer: int, shape: ModelShape, source: WeightSource, prepare: WeightPreparer[W]
) -> LlamaLayer[W]:
    prefix = f"model.layers.{layer}"
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query_size = shape.num_heads * shape.head_dim
    kv_size = shape.num_kv_heads * shape.head_dim
    attention = f"{prefix}.self_attn"
    return LlamaLayer(
        attention_norm=prepare.norm(source.vector(f"{prefix}.input_layernorm.weight", hidden)),
        qkv=prepare.linear(
            [
                source.matrix(f"{attention}.q_proj.weight", query_size, hidden),
                source.matrix(f"{attention}.k_proj.weight", kv_size, hidden),
                source.matrix(f"{attention}.v_proj.weight", kv_size, hidden),
            ]
        ),
        output=prepare.linear([source.matrix(f"{attention}.o_proj.weight", hidden, query_size)]),
        mlp_norm=prepare.norm(source.vector(f"{prefix}.post_attention_layernorm.weight", hidden)),
        gate_up=prepare.linear(
            [
                source.matrix(f"{prefix}.mlp.gate_proj.weight", inner, hidden),
                source.matrix(f"{prefix}.mlp.up_proj.weight", inner, hidden),
            ]
        ),
        down=prepare.linear([source.matrix(f"{prefix}.mlp.down_proj.weight", hidden, inner)]),
    )


class Llama(Generic[W]):
    """One loaded model; immutable after construction."""

    def __init__(self, facts: ModelFacts, source: WeightSource, prepare: WeightPreparer[W]) -> None:
        shape = facts.shape
        embedding = source.matrix("model.embed_tokens.weight", shape.vocab_size, shape.hidden_size)
        self._embedding = prepare.linear([embedding])
        self._layers = [
            _build_layer(layer, shape, source, prepare) for layer in range(shape.num_layers)
        ]
        self._norm = prepare.norm(source.vector("model.norm.weight", shape.hidden_size))
        self._head = (
            self._embedding
            if facts.tie_embeddings
            else prepare.linear(
                [source.matrix("lm_head.weight", shape.vocab_size, shape.hidden_size)]
            )
        )

    def forward(self, ops: Operations[V, W]) -> V:
        """Logits of the sampled tokens; keys and values of all tokens are written to the pool.

        After the last attention only sampled tokens are needed, so the rest of that layer and the
        head run for them alone.
        """
        hidden = ops.embed(self._embedding)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            queries = ops.norm_qkv_rotary_store(hidden, layer.attention_norm, layer.qkv, index)
            attended = ops.attend(queries, index)
            if index == last:
                hidden, attended = ops.select_sampled(hidden), ops.select_sampled(attended)
            hidden = ops.linear_add(attended, layer.output, hidden)
            inner = ops.norm_gate_up_silu(hidden, layer.mlp_norm, layer.gate_up)
            hidden = ops.linear_add(inner, layer.down, hidden)
        return ops.norm_head(hidden, self._norm, self._head)
