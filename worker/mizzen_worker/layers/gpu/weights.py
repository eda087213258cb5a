"""Owns the form of weights on a GPU, and making it of stored ones; computes no step.

A norm before a projection is folded into its columns at load (``W diag(norm)``), so no kernel reads
it: one rounding of each weight to the compute type, as of a checkpoint that was trained that way.
Gate and up rows alternate (gate 0, up 0, gate 1, ...), so that one tile of a product holds both.

Matrices that are stored as FP8 stay so. Rounding them a second time would double their error, so
their norm is not folded and multiplies the input instead. With a ``Quantise`` other matrices of
projections (but for experts, head and embedding) are rounded to FP8 when their norm is in them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from mizzen_worker.kernels.fp8_matrix import FP8, Fp8Matrix, dequantise
from mizzen_worker.layers.expert_stack import stack_experts
from mizzen_worker.layers.operations import StoredMatrix
from mizzen_worker.layers.stored_matrix import as_tensor

_MATRIX = 2
"""Dimensions; experts have one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWeight:
    """A matrix [outputs, inputs], or a norm [size], contiguous, on the device.

    The matrices of experts are one [num_experts, outputs, inputs].
    ``bias`` [outputs] float32 in the order of the rows. For gate and up the rows alternate.
    ``scale`` is there where ``values`` are FP8; see ``kernels/fp8_matrix.py``. ``input_norm``
    [inputs] is the weight of the norm before the projection where it is not in the columns.
    """

    values: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    input_norm: torch.Tensor | None = None

    def on(self, device: torch.device) -> "GpuWeight":
        """The same on a device; a bias is there already."""
        scale = None if self.scale is None else self.scale.to(device)
        return replace(self, values=self.values.to(device), scale=scale)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix in ``dtype``; made anew for every call where it is FP8."""
        if self.scale is None:
            return self.values
        return dequantise(self.values, self.scale, dtype)


def _joined(codes: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of FP8 matrices, one after the other."""
    return torch.cat([part.view(torch.uint8) for part in codes]).view(FP8)


Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A matrix to FP8 values and their scale: ``quantise_rows`` or ``quantise_blocks``."""


class GpuWeightPreparer:
    """Weights in the compute dtype (bfloat16 as a rule) on one device, or quantised there."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        quantise: Quantise | None = None,
        *,
        keeps_fp8: bool = True,
    ) -> None:
        """``keeps_fp8``: the device converts that type; else such matrices become dense."""
        self._keeps_fp8 = keeps_fp8
        self._dtype = dtype
        self.device = device
        self._quantise = quantise

    def linear(self, parts: Sequence[StoredMatrix], bias: torch.Tensor | None = None) -> GpuWeight:
        """See ``WeightPreparer``."""
        packed = self._packed(parts)
        if packed is not None:
            return GpuWeight(
                values=_joined([part.values for part in packed]),
                scale=torch.cat([part.scale for part in packed], dim=1),
                bias=self._bias(bias),
            ).on(self.device)
        return GpuWeight(
            values=torch.cat([self._dense(part) for part in parts]), bias=self._bias(bias)
        )

    def gate_up(
        self, gate: StoredMatrix, up: StoredMatrix, bias: torch.Tensor | None = None
    ) -> GpuWeight:
        """See ``WeightPreparer``."""
        interleaved = None if bias is None else bias.view(2, -1).t().reshape(-1)
        packed = self._packed([gate, up])
        if packed is not None:
            codes = [part.values.view(torch.uint8) for part in packed]
            return GpuWeight(
                values=torch.stack(codes, dim=1).flatten(0, 1).view(FP8),
                scale=torch.stack([part.scale for part in packed], dim=2).flatten(1),
                bias=self._bias(interleaved),
            ).on(self.device)
        both = self._interleaved(gate, up)
        return GpuWeight(values=both, bias=self._bias(interleaved))

    def expert_gate_up(
        self, pairs: Iterable[tuple[StoredMatrix, StoredMatrix]], num_experts: int
    ) -> GpuWeight:
        """See ``WeightPreparer``."""
        both = (self._interleaved(gate, up) for gate, up in pairs)
        return GpuWeight(values=stack_experts(both, num_experts))

    def expert_down(self, matrices: Iterable[StoredMatrix], num_experts: int) -> GpuWeight:
        """See ``WeightPreparer``."""
        dense = (self._dense(matrix) for matrix in matrices)
        return GpuWeight(values=stack_experts(dense, num_experts))

    def normed(self, weight: GpuWeight, norm: torch.Tensor) -> GpuWeight:
        """See ``WeightPreparer``; multiplies in place."""
        if weight.scale is not None:
            return replace(weight, input_norm=norm.to(self.device, self._dtype))
        weight.values.mul_(norm.to(self.device))
        return self.unnormed(weight)

    def unnormed(self, weight: GpuWeight) -> GpuWeight:
        """See ``WeightPreparer``."""
        if self._quantise is None or weight.scale is not None or weight.values.dim() != _MATRIX:
            return replace(weight)
        values, scale = self._quantise(weight.values)
        return replace(weight, values=values, scale=scale)

    def norm(self, weight: torch.Tensor) -> GpuWeight:
        """See ``WeightPreparer``."""
        return GpuWeight(values=weight.to(self.device, self._dtype))

    def _dense(self, part: StoredMatrix) -> torch.Tensor:
        return as_tensor(part).to(self.device, self._dtype)

    def _packed(self, parts: Sequence[StoredMatrix]) -> list[Fp8Matrix] | None:
        """The parts, if all are FP8 of one form and the device converts that type."""
        packed = [part for part in parts if isinstance(part, Fp8Matrix)]
        is_one_form = len({len(part.scale) for part in packed}) == 1
        return packed if len(packed) == len(parts) and is_one_form and self._keeps_fp8 else None

    def _interleaved(self, gate: StoredMatrix, up: StoredMatrix) -> torch.Tensor:
        return torch.stack([self._dense(gate), self._dense(up)], dim=1).flatten(0, 1)

    def _bias(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        return None if bias is None else bias.to(self.device, torch.float32).contiguous()
