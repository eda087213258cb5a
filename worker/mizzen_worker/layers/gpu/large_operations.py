"""Owns fused operations for many tokens: prefill and mixed steps; owns no attention kernel.

A layer is eight launches: the norm's factors, library product, rotation and store, attention,
library product that adds to the residual in place, factors, product with SwiGLU in its epilogue,
and again a library product. Hidden rows are projected as they are; the products are multiplied by
their rows' factors where they are read next, so no normed rows are written and read again. In the
last layer only what the head reads is computed: keys and values are made and stored for every
token, all else for the sampled tokens alone, which may be none.

Everything but whole prompts (``whole_prompts.py``, by exact lengths on the host only) can be
captured: sizes are those of the batch's tensors, and no launch waits for the host.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from mizzen_worker.kernels.gpu.block_best import block_best
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.persistent_gemm import is_served, swiglu_gemm
from mizzen_worker.kernels.gpu.residual_norm import add_norm, rms_norm, row_scales
from mizzen_worker.kernels.gpu.rotary_store import HeadNormWeights, RotaryTarget, rotary_store
from mizzen_worker.kernels.gpu.silu_multiply import silu_multiply
from mizzen_worker.layers.gpu.experts import expert_products
from mizzen_worker.layers.gpu.step import GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.gpu.whole_prompts import find_whole_prompts
from mizzen_worker.layers.operations import Experts, HeadNorms


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeValue:
    """Rows [n, ...], of every token or, ``is_sampled``, of the sampled ones.

    ``projected`` of queries: the projection with rotated keys and values in their places, where
    attention will read them there. ``normed``: their RMS norm without a weight, where it was made
    together with them.
    """

    rows: torch.Tensor
    is_sampled: bool = False
    projected: torch.Tensor | None = None
    normed: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Rows to be projected, and what each row's products are to be multiplied with, if anything."""

    rows: torch.Tensor
    scales: torch.Tensor | None

    def select(self, index: torch.Tensor) -> "_Inputs":
        """Some of the rows."""
        return _Inputs(
            rows=self.rows.index_select(0, index),
            scales=None if self.scales is None else self.scales.index_select(0, index),
        )


class LargeOperations:
    """One step of many tokens; see ``Operations``."""

    def __init__(self, step: GpuStep) -> None:
        self._step = step
        self._eps = step.settings.eps
        self._whole = find_whole_prompts(step, step.pool.keys(0).dtype)

    def embed(self, embedding: GpuWeight) -> LargeValue:
        """See ``Operations``."""
        return LargeValue(rows=F.embedding(self._step.batch.token_ids, embedding.values))

    def norm_qkv_rotary_store(self, hidden: LargeValue, qkv: GpuWeight, layer: int) -> LargeValue:
        """See ``Operations``."""
        return self._queries(hidden, qkv, None, layer)

    def norm_qkv_head_norm_rotary_store(
        self, hidden: LargeValue, qkv: GpuWeight, heads: HeadNorms[GpuWeight], layer: int
    ) -> LargeValue:
        """See ``Operations``."""
        norms = HeadNormWeights(query=heads.query.values, key=heads.key.values, eps=self._eps)
        return self._queries(hidden, qkv, norms, layer)

    def attend(self, queries: LargeValue, layer: int, window: int | None) -> LargeValue:
        """See ``Operations``."""
        if queries.is_sampled:
            return self._attend_sampled(queries, layer, window)
        whole = self._whole
        if whole is None or queries.projected is None or (window or whole.length) < whole.length:
            return LargeValue(rows=self._step.attend(layer, queries.rows, window))
        return LargeValue(rows=whole.attend(queries.rows, queries.projected))

    def linear_add(self, value: LargeValue, weight: GpuWeight, residual: LargeValue) -> LargeValue:
        """See ``Operations``; written over the residual."""
        hidden = residual.rows
        if weight.bias is not None:
            hidden.add_(weight.bias)
        torch.addmm(hidden, value.rows, weight.dense(hidden.dtype).t(), out=hidden)
        return LargeValue(rows=hidden, is_sampled=residual.is_sampled)

    def norm_gate_up_silu(self, hidden: LargeValue, gate_up: GpuWeight) -> LargeValue:
        """See ``Operations``."""
        weight = gate_up.dense(hidden.rows.dtype)
        if is_served(hidden.rows, weight):
            inputs = self._inputs(hidden, gate_up)
            product = swiglu_gemm(inputs.rows, weight, gate_up.bias, scales=inputs.scales)
        else:
            both = torch.mm(self._normed(hidden, gate_up.input_norm), weight.t())
            product = silu_multiply(both, gate_up.bias, PLAIN)
        return LargeValue(rows=product, is_sampled=hidden.is_sampled)

    def norm_experts_add(self, hidden: LargeValue, experts: Experts[GpuWeight]) -> LargeValue:
        """See ``Operations``; written over the hidden rows."""
        products = expert_products(self._normed(hidden), experts, PLAIN)
        normed = add_norm(hidden.rows, products, self._eps, PLAIN)
        return LargeValue(rows=hidden.rows, is_sampled=hidden.is_sampled, normed=normed)

    def select_sampled(self, value: LargeValue) -> LargeValue:
        """See ``Operations``."""
        if value.is_sampled:
            return value
        rows = value.rows.index_select(0, self._step.batch.sampled_tokens)
        return LargeValue(rows=rows, is_sampled=True)

    def norm_head(self, hidden: LargeValue, norm: GpuWeight, head: GpuWeight) -> HeadOutput:
        """See ``Operations``; the form that ``GpuStep.head`` asks for."""
        normed = rms_norm(hidden.rows, self._eps, PLAIN, weight=norm.values)
        if normed.dtype == torch.float32 or not len(normed):
            logits = torch.mm(normed, head.values.t()).float()
        else:
            logits = torch.mm(normed, head.values.t(), out_dtype=torch.float32)
        if head.bias is not None:
            logits.add_(head.bias)
        if self._step.head is HeadResult.LOGITS:
            return HeadOutput(logits=logits)
        values, ids = block_best(logits, PLAIN)
        return HeadOutput(best_values=values, best_ids=ids)

    def _normed(self, hidden: LargeValue, weight: torch.Tensor | None = None) -> torch.Tensor:
        if hidden.normed is not None and weight is None:
            return hidden.normed
        return rms_norm(hidden.rows, self._eps, PLAIN, weight=weight)

    def _inputs(self, hidden: LargeValue, weight: GpuWeight) -> _Inputs:
        if weight.input_norm is not None:
            return _Inputs(rows=self._normed(hidden, weight.input_norm), scales=None)
        if hidden.normed is not None:
            return _Inputs(rows=hidden.normed, scales=None)
        return _Inputs(rows=hidden.rows, scales=row_scales(hidden.rows, self._eps, PLAIN))

    def _queries(
        self, hidden: LargeValue, qkv: GpuWeight, norms: HeadNormWeights | None, layer: int
    ) -> LargeValue:
        inputs = self._inputs(hidden, qkv)
        is_last = layer == self._step.pool.shape.num_layers - 1
        if is_last and self._step.begin_attention is not None:
            return self._sampled_queries(inputs, qkv, norms, layer)
        batch = self._step.batch
        projected = torch.mm(inputs.rows, qkv.dense(inputs.rows.dtype).t())
        # Where the pool rounds, attention must see what it holds.
        is_whole = self._whole is not None and projected.dtype == self._step.pool.keys(0).dtype
        queries = rotary_store(
            projected,
            qkv.bias,
            norms,
            self._target(layer, batch.positions, batch.kv_locations),
            dtype=projected.dtype,
            launch=PLAIN,
            scales=inputs.scales,
            replaces_new=is_whole,
        )
        return LargeValue(rows=queries, projected=projected if is_whole else None)

    def _sampled_queries(
        self, inputs: _Inputs, qkv: GpuWeight, norms: HeadNormWeights | None, layer: int
    ) -> LargeValue:
        """Queries of the sampled tokens; keys and values of all of them are stored."""
        settings, batch = self._step.settings, self._step.batch
        first = settings.num_heads * settings.head_dim
        weight = qkv.dense(inputs.rows.dtype)
        rotary_store(
            torch.mm(inputs.rows, weight[first:].t()),
            None if qkv.bias is None else qkv.bias[first:],
            norms,
            self._target(layer, batch.positions, batch.kv_locations),
            dtype=inputs.rows.dtype,
            launch=PLAIN,
            scales=inputs.scales,
        )
        sampled = batch.sampled_tokens
        # Keys and values of these tokens come along once more, and go to the sink.
        chosen = inputs.select(sampled)
        target = self._target(layer, batch.positions[sampled], torch.zeros_like(sampled))
        queries = rotary_store(
            torch.mm(chosen.rows, weight.t()),
            qkv.bias,
            norms,
            target,
            dtype=chosen.rows.dtype,
            launch=PLAIN,
            scales=chosen.scales,
        )
        return LargeValue(rows=queries, is_sampled=True)

    def _attend_sampled(self, queries: LargeValue, layer: int, window: int | None) -> LargeValue:
        if len(queries.rows) == 0 or self._step.begin_attention is None:
            return LargeValue(rows=queries.rows.flatten(1), is_sampled=True)
        attend = self._step.begin_attention(self._step.batch.sampled_rows())
        return LargeValue(rows=attend(layer, queries.rows, window), is_sampled=True)

    def _target(self, layer: int, positions: torch.Tensor, locations: torch.Tensor) -> RotaryTarget:
        pool = self._step.pool
        scale = pool.scale(layer)
        return RotaryTarget(
            table=self._step.settings.table,
            positions=positions,
            locations=locations,
            keys=pool.keys(layer),
            values=pool.values(layer),
            key_scale=scale.key,
            value_scale=scale.value,
        )
