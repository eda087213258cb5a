"""Owns fused operations for 2 to some 256 tokens: skinny products, dependent launches.

Owns no attention and no choice of tiles. A layer is seven launches: product, rotation and store,
attention, product, sum + norm, gated product, product, sum + norm (the last belongs to the next
layer). Partial products of split K stay partial until somebody needs the hidden rows, and are then
added to the residual and normed in one kernel.

The first launch of a step is never dependent: so ``token_ids``, ``positions`` and
``kv_locations`` are complete for all later ones, which may read them before they wait.
"""

from dataclasses import dataclass

import torch

from mizzen_worker.kernels.gpu.block_best import block_best
from mizzen_worker.kernels.gpu.expert_routing import Padding
from mizzen_worker.kernels.gpu.launching import (
    PLAIN,
    dependent,
    has_tensor_copies,
    shared_memory,
)
from mizzen_worker.kernels.gpu.residual_norm import add_norm, embed_norm, rms_norm
from mizzen_worker.kernels.gpu.rotary_store import HeadNormWeights, RotaryTarget, rotary_store
from mizzen_worker.kernels.gpu.silu_multiply import silu_multiply
from mizzen_worker.kernels.gpu.skinny_best import best_of_blocks
from mizzen_worker.kernels.gpu.skinny_gemm import gated, multiply
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.layers.gpu.experts import expert_products
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct, choose, choose_fp8
from mizzen_worker.layers.gpu.step import GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, HeadNorms


@dataclass(slots=True, kw_only=True)
class SkinnyValue:
    """Rows [n, ...] of a step; a hidden row may still lack partial products.

    Invariant: the hidden rows are ``rows`` + the sum of ``partials`` + ``bias``; ``normed`` is
    their RMS norm without a weight, if it was asked for, and then nothing is lacking.
    """

    rows: torch.Tensor
    partials: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    normed: torch.Tensor | None = None


class SkinnyOperations:
    """One step of few tokens; see ``Operations``."""

    def __init__(self, step: GpuStep) -> None:
        self._step = step
        self._eps = step.settings.eps
        self._launch = dependent() if step.is_dependent else PLAIN

    def embed(self, embedding: GpuWeight) -> SkinnyValue:
        """See ``Operations``."""
        hidden, normed = embed_norm(embedding.values, self._step.batch.token_ids, self._eps, PLAIN)
        return SkinnyValue(rows=hidden, normed=normed)

    def norm_qkv_rotary_store(self, hidden: SkinnyValue, qkv: GpuWeight, layer: int) -> SkinnyValue:
        """See ``Operations``."""
        return self._rotate_and_store(hidden, qkv, None, layer)

    def norm_qkv_head_norm_rotary_store(
        self, hidden: SkinnyValue, qkv: GpuWeight, heads: HeadNorms[GpuWeight], layer: int
    ) -> SkinnyValue:
        """See ``Operations``."""
        norms = HeadNormWeights(query=heads.query.values, key=heads.key.values, eps=self._eps)
        return self._rotate_and_store(hidden, qkv, norms, layer)

    def attend(self, queries: SkinnyValue, layer: int, window: int | None) -> SkinnyValue:
        """See ``Operations``."""
        attended = self._step.attend(layer, queries.rows, window)
        return SkinnyValue(rows=attended.reshape(len(queries.rows), -1))

    def linear_add(
        self, value: SkinnyValue, weight: GpuWeight, residual: SkinnyValue
    ) -> SkinnyValue:
        """See ``Operations``; the products stay partial."""
        partials = self._partial(value.rows, weight, SkinnyProduct.ADD)
        return SkinnyValue(rows=self._hidden(residual), partials=partials, bias=weight.bias)

    def norm_gate_up_silu(self, hidden: SkinnyValue, gate_up: GpuWeight) -> SkinnyValue:
        """See ``Operations``."""
        normed = self._input(hidden, gate_up)
        tile = self._tile(normed, gate_up, SkinnyProduct.GATE_UP)
        if tile is None:
            both = torch.mm(normed, gate_up.dense(normed.dtype).t())
            return SkinnyValue(rows=silu_multiply(both, gate_up.bias, self._launch))
        return SkinnyValue(
            rows=gated(
                normed,
                gate_up.values,
                tile,
                launch=self._launch,
                bias=gate_up.bias,
                scale=gate_up.scale,
            )
        )

    def norm_experts_add(self, hidden: SkinnyValue, experts: Experts[GpuWeight]) -> SkinnyValue:
        """See ``Operations``; the experts' products stay apart."""
        tally = self._step.settings.expert_counts
        products = expert_products(
            self._normed(hidden), experts, self._launch, tally, self._padding()
        )
        return SkinnyValue(rows=self._hidden(hidden), partials=products)

    def _padding(self) -> Padding | None:
        """None where rows may have been left out on the way."""
        batch = self._step.batch
        if not batch.is_all_sampled:
            return None
        return Padding(locations=batch.kv_locations, first=batch.page_size)

    def select_sampled(self, value: SkinnyValue) -> SkinnyValue:
        """See ``Operations``; nothing is done where every token is sampled."""
        batch = self._step.batch
        if batch.is_all_sampled:
            return value
        return SkinnyValue(rows=self._hidden(value).index_select(0, batch.sampled_tokens))

    def norm_head(self, hidden: SkinnyValue, norm: GpuWeight, head: GpuWeight) -> HeadOutput:
        """See ``Operations``; the form that ``GpuStep.head`` asks for."""
        normed = self._head_input(hidden, norm)
        if self._step.head is HeadResult.LOGITS:
            return HeadOutput(logits=self._logits(normed, head))
        tile = self._tile(normed, head, SkinnyProduct.BEST)
        if tile is None:
            values, ids = block_best(self._logits(normed, head), self._launch)
        else:
            values, ids = best_of_blocks(
                normed, head.values, tile, launch=self._launch, bias=head.bias
            )
        return HeadOutput(best_values=values, best_ids=ids)

    def _rotate_and_store(
        self, hidden: SkinnyValue, qkv: GpuWeight, norms: HeadNormWeights | None, layer: int
    ) -> SkinnyValue:
        normed = self._input(hidden, qkv)
        projected = self._partial(normed, qkv, SkinnyProduct.QKV)
        batch, pool = self._step.batch, self._step.pool
        scale = pool.scale(layer)
        target = RotaryTarget(
            table=self._step.settings.table,
            positions=batch.positions,
            locations=batch.kv_locations,
            keys=pool.keys(layer),
            values=pool.values(layer),
            key_scale=scale.key,
            value_scale=scale.value,
        )
        queries = rotary_store(
            projected, qkv.bias, norms, target, dtype=normed.dtype, launch=self._launch
        )
        return SkinnyValue(rows=queries)

    def _partial(
        self, rows: torch.Tensor, weight: GpuWeight, product: SkinnyProduct
    ) -> torch.Tensor:
        """[splits, n, outputs] without the bias; float32 where it is split."""
        tile = self._tile(rows, weight, product)
        if tile is None:
            return torch.mm(rows, weight.dense(rows.dtype).t()).unsqueeze(0)
        dtype = torch.float32 if tile.splits > 1 else rows.dtype
        return multiply(
            rows, weight.values, tile, dtype=dtype, launch=self._launch, scale=weight.scale
        )

    def _logits(self, normed: torch.Tensor, head: GpuWeight) -> torch.Tensor:
        """[n, vocab] float32."""
        tile = self._tile(normed, head, SkinnyProduct.LOGITS)
        if tile is not None:
            return multiply(
                normed,
                head.values,
                tile,
                dtype=torch.float32,
                launch=self._launch,
                bias=head.bias,
            )[0]
        if normed.dtype == torch.float32:
            logits = torch.mm(normed, head.values.t())
        else:
            logits = torch.mm(normed, head.values.t(), out_dtype=torch.float32)
        return logits if head.bias is None else logits.add_(head.bias)

    def _hidden(self, value: SkinnyValue) -> torch.Tensor:
        """The hidden rows, complete."""
        if value.partials is not None:
            self._normed(value)
        return value.rows

    def _input(self, value: SkinnyValue, weight: GpuWeight) -> torch.Tensor:
        """The norm that stands before a projection, with its weight where that is not folded."""
        if weight.input_norm is None:
            return self._normed(value)
        return self._complete(value, weight.input_norm)

    def _normed(self, value: SkinnyValue) -> torch.Tensor:
        """The norm of the hidden rows; made once, together with the rows."""
        if value.normed is None:
            value.normed = self._complete(value, None)
        return value.normed

    def _head_input(self, value: SkinnyValue, norm: GpuWeight) -> torch.Tensor:
        """The norm of the hidden rows with its weight: heads may be tied, so nothing is folded."""
        return self._complete(value, norm.values)

    def _complete(self, value: SkinnyValue, weight: torch.Tensor | None) -> torch.Tensor:
        if value.partials is None:
            return rms_norm(value.rows, self._eps, self._launch, weight=weight)
        normed = add_norm(
            value.rows, value.partials, self._eps, self._launch, bias=value.bias, weight=weight
        )
        value.partials = value.bias = None
        return normed

    def _tile(self, rows: torch.Tensor, weight: GpuWeight, product: SkinnyProduct) -> Tile | None:
        """The configuration that fits this device; None for the library's product."""
        outputs, inputs = weight.values.shape
        size, matrix_size = rows.element_size(), weight.values.element_size()
        if not has_tensor_copies() or inputs * matrix_size % 16 or len(rows) == 0:
            return None
        matrix = Matrix(product=product, outputs=outputs, inputs=inputs)
        if weight.scale is None:
            tile = choose(matrix, len(rows))
        else:
            tile = choose_fp8(matrix, len(rows), is_grouped=len(weight.scale) > 1)
        return None if tile is None else tile.fitted(shared_memory(), size, matrix_size)
