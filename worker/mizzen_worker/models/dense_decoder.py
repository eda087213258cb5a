"""Owns the decoder as fused operations, for every architecture, dense or with experts.

Knows no kernel, regime, page or device. What differs between architectures is data
(``architecture.py``); what differs between checkpoints is in ``ModelFacts``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

import torch

from mizzen_worker.layers.operations import (
    Experts,
    HeadNorms,
    Operations,
    Routing,
    StoredMatrix,
    V,
    W,
    WeightPreparer,
)
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.expert_names import ExpertNames
from mizzen_worker.models.model_facts import ExpertShape, ModelFacts
from mizzen_worker.models.weight_source import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp(Generic[W]):
    """The dense form of a layer's second half."""

    gate_up: W
    down: W


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer(Generic[W]):
    """Weights of one layer; ``head_norms`` None: heads are rotated as projected."""

    qkv: W
    head_norms: HeadNorms[W] | None
    output: W
    mlp: GatedMlp[W] | Experts[W]


class _LayerReader(Generic[W]):
    """Asks for the weights of one layer after the other."""

    def __init__(
        self,
        architecture: Architecture,
        facts: ModelFacts,
        source: WeightSource,
        prepare: WeightPreparer[W],
    ) -> None:
        self._facts = facts
        self._source = source
        self._prepare = prepare
        is_attention, is_mlp = facts.has_attention_bias, facts.has_mlp_bias
        self._has_qkv_bias = architecture.qkv_bias.holds(is_configured=is_attention)
        self._has_output_bias = architecture.output_bias.holds(is_configured=is_attention)
        self._has_mlp_bias = architecture.mlp_bias.holds(is_configured=is_mlp)
        self._has_head_norms = architecture.has_head_norms
        self._expert_names = architecture.experts

    def read(self, layer: int) -> DecoderLayer[W]:
        prefix = f"model.layers.{layer}"
        shape = self._facts.shape
        hidden = shape.hidden_size
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        attention = f"{prefix}.self_attn"
        qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        return DecoderLayer(
            qkv=self._normed(
                self._linear(attention, qkv, hidden, has_bias=self._has_qkv_bias),
                f"{prefix}.input_layernorm",
            ),
            head_norms=self._read_head_norms(attention),
            output=self._prepare.unnormed(
                self._linear(attention, {"o_proj": hidden}, queries, has_bias=self._has_output_bias)
            ),
            mlp=self._read_mlp(prefix, layer),
        )

    def _read_mlp(self, prefix: str, layer: int) -> GatedMlp[W] | Experts[W]:
        shape, norm = self._facts.shape, f"{prefix}.post_attention_layernorm"
        names, experts = self._expert_names, shape.experts
        if names is not None and experts is not None and layer in experts.layers:
            return self._read_experts(f"{prefix}.{names.block}", norm, names, experts)
        mlp, hidden, inner = f"{prefix}.mlp", shape.hidden_size, shape.intermediate_size
        return GatedMlp(
            gate_up=self._normed(self._gate_up(mlp, inner, hidden), norm),
            down=self._prepare.unnormed(
                self._linear(mlp, {"down_proj": hidden}, inner, has_bias=self._has_mlp_bias)
            ),
        )

    def _read_experts(
        self, block: str, norm: str, names: ExpertNames, experts: ExpertShape
    ) -> Experts[W]:
        hidden, inner, count = (
            self._facts.shape.hidden_size,
            experts.intermediate_size,
            experts.num_experts,
        )

        def read(name: str, rows: int, columns: int) -> Iterator[StoredMatrix]:
            for expert in range(count):
                yield self._source.matrix(f"{block}.experts.{expert}.{name}.weight", rows, columns)

        router = self._linear(block, {"gate": count}, hidden, has_bias=False)
        pairs = zip(read(names.gate, inner, hidden), read(names.up, inner, hidden), strict=True)
        gate_up = self._prepare.expert_gate_up(pairs, count)
        return Experts(
            routing=Routing(num_chosen=experts.num_chosen, is_normalised=experts.is_normalised),
            router=self._normed(router, norm),
            gate_up=self._normed(gate_up, norm),
            down=self._prepare.expert_down(read(names.down, hidden, inner), count),
        )

    def _read_head_norms(self, attention: str) -> HeadNorms[W] | None:
        if not self._has_head_norms:
            return None
        head_dim = self._facts.shape.head_dim
        return HeadNorms(
            query=self._norm(f"{attention}.q_norm", head_dim),
            key=self._norm(f"{attention}.k_norm", head_dim),
        )

    def _norm(self, name: str, length: int) -> W:
        return self._prepare.norm(self._source.vector(f"{name}.weight", length))

    def _normed(self, weight: W, norm: str) -> W:
        length = self._facts.shape.hidden_size
        return self._prepare.normed(weight, self._source.vector(f"{norm}.weight", length))

    def _gate_up(self, block: str, rows: int, columns: int) -> W:
        names = (f"{block}.gate_proj", f"{block}.up_proj")
        gate, up = (self._source.matrix(f"{name}.weight", rows, columns) for name in names)
        if not self._has_mlp_bias:
            return self._prepare.gate_up(gate, up)
        biases = [self._source.vector(f"{name}.bias", rows) for name in names]
        return self._prepare.gate_up(gate, up, torch.cat(biases))

    def _linear(
        self, block: str, rows_by_part: dict[str, int], columns: int, *, has_bias: bool
    ) -> W:
        """One weight of several projections of the same input."""
        parts = [
            self._source.matrix(f"{block}.{part}.weight", rows, columns)
            for part, rows in rows_by_part.items()
        ]
        if not has_bias:
            return self._prepare.linear(parts)
        biases = [
            self._source.vector(f"{block}.{part}.bias", rows) for part, rows in rows_by_part.items()
        ]
        return self._prepare.linear(parts, torch.cat(biases))


class DenseDecoder(Generic[W]):
    """One loaded model; immutable after construction."""

    def __init__(
        self,
        architecture: Architecture,
        facts: ModelFacts,
        source: WeightSource,
        prepare: WeightPreparer[W],
    ) -> None:
        shape = facts.shape
        embedding = source.matrix("model.embed_tokens.weight", shape.vocab_size, shape.hidden_size)
        self._embedding = prepare.linear([embedding])
        del embedding
        reader = _LayerReader(architecture, facts, source, prepare)
        self._layers = [reader.read(layer) for layer in range(shape.num_layers)]
        self._windows = facts.windows
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

        After the last attention only sampled tokens are used, so the rest of that layer and the
        head run for them alone. ``Operations`` rely on it: they may attend to no others there.
        """
        hidden = ops.embed(self._embedding)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            queries = self._queries(ops, hidden, layer, index)
            attended = ops.attend(queries, index, self._windows[index])
            if index == last:
                hidden, attended = ops.select_sampled(hidden), ops.select_sampled(attended)
            hidden = ops.linear_add(attended, layer.output, hidden)
            hidden = self._mlp(ops, hidden, layer.mlp)
        return ops.norm_head(hidden, self._norm, self._head)

    def _mlp(self, ops: Operations[V, W], hidden: V, mlp: GatedMlp[W] | Experts[W]) -> V:
        if isinstance(mlp, Experts):
            return ops.norm_experts_add(hidden, mlp)
        inner = ops.norm_gate_up_silu(hidden, mlp.gate_up)
        return ops.linear_add(inner, mlp.down, hidden)

    def _queries(self, ops: Operations[V, W], hidden: V, layer: DecoderLayer[W], index: int) -> V:
        if layer.head_norms is None:
            return ops.norm_qkv_rotary_store(hidden, layer.qkv, index)
        return ops.norm_qkv_head_norm_rotary_store(hidden, layer.qkv, layer.head_norms, index)
