"""Owns fused operations of one rank of several, on a GPU each; owns no kernel and no exchange.

Heads, inner columns and rows of the vocabulary are the rank's own, and the kernels are those of a
device that has everything. What differs: a product behind which ranks add up is not joined with the
residual, which every rank adds itself, after the exchange; so hidden rows are the same on all
ranks, bit for bit. Sums of few rows travel in float32, of many in the compute type.

An exchange is no link of a chain of dependent launches (PDL): steps are not asked to be such.
"""

from dataclasses import replace

import torch

from mizzen_worker.kernels.gpu.block_best import block_best
from mizzen_worker.kernels.gpu.embed_own import embed_own
from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.residual_norm import rms_norm
from mizzen_worker.layers.gpu.experts import expert_products
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations, GemvValue
from mizzen_worker.layers.gpu.large_operations import LargeOperations, LargeValue
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations, SkinnyValue
from mizzen_worker.layers.gpu.skinny_tiles import SkinnyProduct
from mizzen_worker.layers.gpu.step import GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts
from mizzen_worker.layers.ranks import JoinedRanks

_MOST_WIDE_ROWS = 32
"""Up to so many rows an exchange takes as long for float32 as for half of it."""


class _Rank:
    """What all regimes do alike, for one step."""

    def __init__(self, ranks: JoinedRanks, step: GpuStep) -> None:
        self._ranks = ranks
        self._asked = step.head
        self._batch = step.batch

    def own_step(self, step: GpuStep) -> GpuStep:
        """The step as the rank's own kernels run it."""
        head = step.head if self._ranks.is_even else HeadResult.LOGITS
        return replace(step, head=head)

    def embed(self, embedding: GpuWeight) -> torch.Tensor:
        """Hidden rows [num_tokens, hidden]."""
        rows = embed_own(self._batch.token_ids, embedding.values, self._ranks.own.start)
        self.sum(rows)
        return rows

    def sum(self, values: torch.Tensor) -> None:
        """Over ranks, in place; of no rows there is nothing to exchange."""
        if values.numel() > 0:
            self._ranks.sum(values)

    def head(self, output: HeadOutput) -> HeadOutput:
        """Of the rank's rows of the vocabulary to the whole one."""
        if output.best_values is not None and output.best_ids is not None:
            values, ids = self._ranks.whole_best(output.best_values, output.best_ids)
            return HeadOutput(best_values=values, best_ids=ids)
        assert output.logits is not None, "a head gives one of the two forms"
        logits = self._ranks.whole_logits(output.logits)
        if self._asked is HeadResult.LOGITS:
            return HeadOutput(logits=logits)
        values, ids = block_best(logits.contiguous(), PLAIN)
        return HeadOutput(best_values=values, best_ids=ids)


class RankGemvOperations(GemvOperations):
    """A rank's step of one token."""

    def __init__(self, ranks: JoinedRanks, step: GpuStep) -> None:
        self._rank = _Rank(ranks, step)
        super().__init__(self._rank.own_step(step))

    def embed(self, embedding: GpuWeight) -> GemvValue:
        """See ``Operations``."""
        return self._rank.embed(embedding)

    def linear_add(self, value: GemvValue, weight: GpuWeight, residual: GemvValue) -> GemvValue:
        """See ``Operations``."""
        assert isinstance(value, torch.Tensor), "a row is needed"
        assert isinstance(residual, torch.Tensor), "a row is needed"
        total = torch.empty_like(residual, dtype=torch.float32)
        self._add_product(value, weight, None, total)
        return self._added(residual, total)

    def norm_experts_add(self, hidden: GemvValue, experts: Experts[GpuWeight]) -> GemvValue:
        """See ``Operations``."""
        assert isinstance(hidden, torch.Tensor), "a row is needed"
        normed = rms_norm(hidden, self._settings.eps, self._launch)
        products = expert_products(normed, experts, self._launch)
        return self._added(hidden, products.sum(0, dtype=torch.float32))

    def norm_head(self, hidden: GemvValue, norm: GpuWeight, head: GpuWeight) -> GemvValue:
        """See ``Operations``."""
        output = super().norm_head(hidden, norm, head)
        assert isinstance(output, HeadOutput), "a head gives its output"
        return self._rank.head(output)

    def _added(self, residual: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        self._rank.sum(total)
        return torch.add(residual, total, out=torch.empty_like(residual))


class RankSkinnyOperations(SkinnyOperations):
    """A rank's step of few tokens."""

    def __init__(self, ranks: JoinedRanks, step: GpuStep) -> None:
        self._rank = _Rank(ranks, step)
        super().__init__(self._rank.own_step(step))

    def embed(self, embedding: GpuWeight) -> SkinnyValue:
        """See ``Operations``."""
        return SkinnyValue(rows=self._rank.embed(embedding))

    def linear_add(
        self, value: SkinnyValue, weight: GpuWeight, residual: SkinnyValue
    ) -> SkinnyValue:
        """See ``Operations``; the sum over ranks stays apart."""
        hidden = self._hidden(residual)
        partials = self._partial(value.rows, weight, SkinnyProduct.ADD)
        total = partials[0] if len(partials) == 1 else partials.sum(0)
        if weight.bias is not None:
            total.add_(weight.bias)
        return self._apart(hidden, total)

    def norm_experts_add(self, hidden: SkinnyValue, experts: Experts[GpuWeight]) -> SkinnyValue:
        """See ``Operations``; the sum over ranks stays apart."""
        products = super().norm_experts_add(hidden, experts)
        assert products.partials is not None, "experts' products stay apart"
        return self._apart(products.rows, products.partials.sum(0, dtype=torch.float32))

    def norm_head(self, hidden: SkinnyValue, norm: GpuWeight, head: GpuWeight) -> HeadOutput:
        """See ``Operations``."""
        return self._rank.head(super().norm_head(hidden, norm, head))

    def _apart(self, hidden: torch.Tensor, total: torch.Tensor) -> SkinnyValue:
        if len(total) > _MOST_WIDE_ROWS:
            total = total.to(hidden.dtype)
        self._rank.sum(total)
        return SkinnyValue(rows=hidden, partials=total.unsqueeze(0))


class RankLargeOperations(LargeOperations):
    """A rank's step of many tokens."""

    def __init__(self, ranks: JoinedRanks, step: GpuStep) -> None:
        self._rank = _Rank(ranks, step)
        super().__init__(self._rank.own_step(step))

    def embed(self, embedding: GpuWeight) -> LargeValue:
        """See ``Operations``."""
        return LargeValue(rows=self._rank.embed(embedding))

    def linear_add(self, value: LargeValue, weight: GpuWeight, residual: LargeValue) -> LargeValue:
        """See ``Operations``; written over the residual."""
        product = torch.mm(value.rows, weight.dense(value.rows.dtype).t())
        if weight.bias is not None:
            product.add_(weight.bias)
        return self._added(residual, product)

    def norm_experts_add(self, hidden: LargeValue, experts: Experts[GpuWeight]) -> LargeValue:
        """See ``Operations``; written over the hidden rows."""
        products = expert_products(self._normed(hidden), experts, PLAIN)
        return self._added(hidden, products.sum(0))

    def norm_head(self, hidden: LargeValue, norm: GpuWeight, head: GpuWeight) -> HeadOutput:
        """See ``Operations``."""
        return self._rank.head(super().norm_head(hidden, norm, head))

    def _added(self, residual: LargeValue, product: torch.Tensor) -> LargeValue:
        self._rank.sum(product)
        residual.rows.add_(product)
        return LargeValue(rows=residual.rows, is_sampled=residual.is_sampled)
