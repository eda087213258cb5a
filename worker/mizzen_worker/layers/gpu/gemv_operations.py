"""Owns the GPU implementation of ``Operations`` for steps of exactly one token.

A chain of products of matrices with one row: six kernels a layer (norm + query/key/value product +
rotation; attention with the store of the token's key and value; merge of its splits; output product
+ residual; norm + gate/up product + SwiGLU; down product + residual). Weights are loaded before
each kernel waits for its predecessor (PDL). Owns no kernel and no choice of tiles.

The first kernel is launched plainly: it begins when everything before the step has ended, so what
later kernels read before their wait (page table, lengths, position) is complete.
"""

from dataclasses import dataclass

import torch
import triton

from mizzen_worker.kernels.gpu.embed_row import embed_row
from mizzen_worker.kernels.gpu.gemv import GemvTile, gated, linear
from mizzen_worker.kernels.gpu.head_gemv import best_of_blocks
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent, num_multiprocessors
from mizzen_worker.kernels.gpu.residual_norm import rms_norm
from mizzen_worker.kernels.gpu.rotary_gemv import RotaryHeads, parts_of_head, rotary_linear
from mizzen_worker.kernels.gpu.single_row_attention import RowKv, single_row_attention
from mizzen_worker.layers.gpu.experts import add_experts_of_one
from mizzen_worker.layers.gpu.gemv_tiles import (
    GemvProduct,
    fp8_gemv_tile,
    gemv_tile,
    qkv_tile,
    split_tile,
)
from mizzen_worker.layers.gpu.step import GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, HeadNorms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedHeads:
    """Queries, keys and values of the token as of ``rotary_gemv.py``, not yet in the pool.

    ``projected`` [1, outputs]; ``squares`` [heads, parts] float32 where heads have norms.
    """

    projected: torch.Tensor
    squares: torch.Tensor | None


GemvValue = torch.Tensor | ProjectedHeads | HeadOutput
"""Rows are tensors [1, size], or [0, size] where no logits are asked for."""


def _row(value: GemvValue) -> torch.Tensor:
    assert isinstance(value, torch.Tensor), f"a row is needed, not {type(value).__name__}"
    return value


def tile_of(weight: GpuWeight, product: GemvProduct) -> GemvTile:
    """How the product with a weight is cut."""
    choose = gemv_tile if weight.scale is None else fp8_gemv_tile
    return choose(product, *weight.values.shape)


class GemvOperations:
    """One step of one token."""

    def __init__(self, step: GpuStep) -> None:
        batch = step.batch
        if batch.num_tokens != 1 or batch.num_rows != 1 or len(batch.sampled_tokens) > 1:
            message = (
                f"GemvOperations got {batch.num_tokens} tokens, {batch.num_rows} rows and"
                f" {len(batch.sampled_tokens)} sampled tokens: they are for steps of one token"
            )
            raise ValueError(message)
        self._batch = batch
        self._pool = step.pool
        self._settings = step.settings
        self._head = step.head
        self._launch = dependent() if step.is_dependent else PLAIN
        self._split_tile = split_tile(
            step.settings.num_kv_heads, step.settings.head_dim, num_multiprocessors()
        )

    def embed(self, embedding: GpuWeight) -> GemvValue:
        """See ``Operations``."""
        values = embedding.values
        output = values.new_empty(1, values.shape[1])
        embed_row(self._batch.token_ids, values, output, launch=self._launch)
        return output

    def norm_qkv_rotary_store(
        self,
        hidden: GemvValue,
        qkv: GpuWeight,
        layer: int,  # noqa: ARG002  (nothing is stored yet)
    ) -> GemvValue:
        """See ``Operations``; keys and values are stored by ``attend``."""
        return self._project_heads(_row(hidden), qkv, None)

    def norm_qkv_head_norm_rotary_store(
        self,
        hidden: GemvValue,
        qkv: GpuWeight,
        heads: HeadNorms[GpuWeight],
        layer: int,  # noqa: ARG002  (nothing is stored yet)
    ) -> GemvValue:
        """See ``Operations``; keys and values are stored by ``attend``."""
        return self._project_heads(_row(hidden), qkv, heads)

    def attend(self, queries: GemvValue, layer: int, window: int | None) -> GemvValue:
        """See ``Operations``."""
        assert isinstance(queries, ProjectedHeads), "attend takes what the projection gave"
        batch, settings = self._batch, self._settings
        output = queries.projected.new_empty(1, settings.num_heads * settings.head_dim)
        scale = self._pool.scale(layer)
        kv = RowKv(
            key_scale=scale.key,
            value_scale=scale.value,
            keys=self._pool.keys(layer),
            values=self._pool.values(layer),
            page_table=batch.page_table,
            slot=batch.row_slots,
            location=batch.kv_locations,
            length=batch.device_row_lengths,
            page_size=batch.page_size,
        )
        single_row_attention(
            queries.projected,
            queries.squares,
            kv,
            output,
            window=window,
            eps=settings.eps,
            tile=self._split_tile,
            launch=self._launch,
        )
        return output

    def linear_add(self, value: GemvValue, weight: GpuWeight, residual: GemvValue) -> GemvValue:
        """See ``Operations``."""
        output = torch.empty_like(_row(residual))
        self._add_product(_row(value), weight, _row(residual), output)
        return output

    def _add_product(
        self, x: torch.Tensor, weight: GpuWeight, added: torch.Tensor | None, output: torch.Tensor
    ) -> None:
        if len(x):
            linear(
                x,
                weight.values,
                weight.bias,
                added,
                output,
                norm_eps=None,
                tile=tile_of(weight, GemvProduct.ADD),
                launch=self._launch,
                scale=weight.scale,
            )

    def norm_gate_up_silu(self, hidden: GemvValue, gate_up: GpuWeight) -> GemvValue:
        """See ``Operations``."""
        x, norm_eps = self._input(_row(hidden), gate_up)
        num_rows = len(gate_up.values)
        output = x.new_empty(len(x), num_rows // 2)
        if len(x):
            gated(
                x,
                gate_up.values,
                gate_up.bias,
                output,
                norm_eps=norm_eps,
                tile=tile_of(gate_up, GemvProduct.GATE_UP),
                launch=self._launch,
                scale=gate_up.scale,
            )
        return output

    def norm_experts_add(self, hidden: GemvValue, experts: Experts[GpuWeight]) -> GemvValue:
        """See ``Operations``."""
        x = _row(hidden)
        if len(x) == 0:
            return x
        return add_experts_of_one(x, experts, self._settings.eps, self._launch)

    def select_sampled(self, value: GemvValue) -> GemvValue:
        """See ``Operations``: the one token, or none."""
        return _row(value)[: len(self._batch.sampled_tokens)]

    def norm_head(self, hidden: GemvValue, norm: GpuWeight, head: GpuWeight) -> GemvValue:
        """See ``Operations``; a ``HeadOutput`` in the form that the step asks for.

        The norm is a kernel of its own: the head, often also the embedding, is not folded, and a
        norm's weight in its loop costs far more than the 1-2 us of one more kernel.
        """
        x = _row(hidden)
        normed = rms_norm(x, self._settings.eps, self._launch, weight=norm.values)
        if self._head is HeadResult.LOGITS:
            return HeadOutput(logits=self._logits(normed, head))
        return self._best(normed, head)

    def _input(self, x: torch.Tensor, weight: GpuWeight) -> tuple[torch.Tensor, float | None]:
        """The row to multiply, and the eps of a norm that is left to the product."""
        eps = self._settings.eps
        if weight.input_norm is None or len(x) == 0:
            return x, eps
        return rms_norm(x, eps, self._launch, weight=weight.input_norm), None

    def _logits(self, normed: torch.Tensor, head: GpuWeight) -> torch.Tensor:
        values = head.values
        logits = normed.new_empty(len(normed), len(values), dtype=torch.float32)
        if len(normed):
            linear(
                normed,
                values,
                head.bias,
                None,
                logits,
                norm_eps=None,
                tile=gemv_tile(GemvProduct.HEAD, *values.shape),
                launch=self._launch,
            )
        return logits

    def _best(self, normed: torch.Tensor, head: GpuWeight) -> HeadOutput:
        tile = gemv_tile(GemvProduct.HEAD, *head.values.shape)
        num_blocks = triton.cdiv(len(head.values), tile.warps * tile.rows)
        best_values = normed.new_empty(len(normed), num_blocks, dtype=torch.float32)
        best_ids = normed.new_empty(len(normed), num_blocks, dtype=torch.int32)
        if len(normed):
            best_of_blocks(
                normed,
                head.values,
                head.bias,
                best_values,
                best_ids,
                tile=tile,
                launch=self._launch,
            )
        return HeadOutput(best_values=best_values, best_ids=best_ids)

    def _project_heads(
        self, x: torch.Tensor, qkv: GpuWeight, norms: HeadNorms[GpuWeight] | None
    ) -> ProjectedHeads:
        settings = self._settings
        x, norm_eps = self._input(x, qkv)
        num_rows, num_inputs = qkv.values.shape
        tile = qkv_tile(num_rows, num_inputs, settings.head_dim)
        num_heads = settings.num_heads + 2 * settings.num_kv_heads
        projected = x.new_empty(1, num_rows)
        squares = x.new_empty(
            num_heads, parts_of_head(settings.head_dim, tile), dtype=torch.float32
        )
        heads = RotaryHeads(
            num_heads=settings.num_heads,
            num_kv_heads=settings.num_kv_heads,
            table=settings.table,
            position=self._batch.positions,
            query_norm=None if norms is None else norms.query.values,
            key_norm=None if norms is None else norms.key.values,
        )
        rotary_linear(
            x,
            qkv.values,
            qkv.bias,
            heads,
            projected,
            squares,
            norm_eps=norm_eps,
            tile=tile,
            launch=self._launch,
            scale=qkv.scale,
        )
        return ProjectedHeads(projected=projected, squares=None if norms is None else squares)
