"""Operations over GPU weights in plain torch, on any device: for what is around the kernels.

Weights are undone (norms are folded in, gate and up rows alternate), then ``TorchOperations`` does
the work. ``regimes`` gives the class for every number of tokens, and notes which was asked for.
"""

from dataclasses import replace

import torch
from tests.worker.model_executor.rerun_graphs import best_of

from mizzen_worker.attention.base import StepAttention
from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.layers.gpu.step import GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Experts, HeadNorms
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeight
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.gpu_forward import Regimes


class DeviceRowsAttention:
    """Attention in torch that goes by the rows on the device: the host's may be bounds."""

    def __init__(self, pool: DevicePool) -> None:
        self._attention = TorchNativeAttention(pool)

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> StepAttention:
        starts, lengths = batch.device_row_starts.cpu(), batch.device_row_lengths.cpu()
        is_used = starts.diff() > 0
        own = replace(
            batch,
            row_slots=batch.row_slots[is_used.to(batch.row_slots.device)],
            device_row_starts=torch.cat([starts[:-1][is_used], starts[-1:]]),
            device_row_lengths=lengths[is_used],
            row_starts=torch.cat([starts[:-1][is_used], starts[-1:]]).numpy(),
            row_lengths=lengths[is_used].numpy(),
        )
        return self._attention.begin(own)


class StandInOperations:
    """``Operations`` for one step."""

    def __init__(self, step: GpuStep) -> None:
        self._step = step
        settings = step.settings
        self._torch = TorchOperations(
            step.batch, step.pool, step.attend, settings.table, settings.eps
        )

    def embed(self, embedding: GpuWeight) -> torch.Tensor:
        return self._torch.embed(_plain(embedding))

    def norm_qkv_rotary_store(
        self, hidden: torch.Tensor, qkv: GpuWeight, layer: int
    ) -> torch.Tensor:
        return self._torch.norm_qkv_rotary_store(hidden, _normed(qkv), layer)

    def norm_qkv_head_norm_rotary_store(
        self, hidden: torch.Tensor, qkv: GpuWeight, heads: HeadNorms[GpuWeight], layer: int
    ) -> torch.Tensor:
        norms = HeadNorms(query=_plain(heads.query), key=_plain(heads.key))
        return self._torch.norm_qkv_head_norm_rotary_store(hidden, _normed(qkv), norms, layer)

    def attend(self, queries: torch.Tensor, layer: int, window: int | None) -> torch.Tensor:
        return self._torch.attend(queries, layer, window)

    def linear_add(
        self, value: torch.Tensor, weight: GpuWeight, residual: torch.Tensor
    ) -> torch.Tensor:
        return self._torch.linear_add(value, _plain(weight), residual)

    def norm_gate_up_silu(self, hidden: torch.Tensor, gate_up: GpuWeight) -> torch.Tensor:
        bias = gate_up.bias
        apart = GpuWeight(
            values=torch.cat([gate_up.values[0::2], gate_up.values[1::2]]),
            bias=None if bias is None else torch.cat([bias[0::2], bias[1::2]]),
        )
        return self._torch.norm_gate_up_silu(hidden, _normed(apart))

    def norm_experts_add(self, hidden: torch.Tensor, experts: Experts[GpuWeight]) -> torch.Tensor:
        gate_up = experts.gate_up.values
        apart = torch.cat([gate_up[:, 0::2], gate_up[:, 1::2]], dim=1)
        plain = Experts(
            routing=experts.routing,
            router=_normed(experts.router),
            gate_up=TorchWeight(values=apart),
            down=_plain(experts.down),
        )
        return self._torch.norm_experts_add(hidden, plain)

    def select_sampled(self, value: torch.Tensor) -> torch.Tensor:
        return self._torch.select_sampled(value)

    def norm_head(self, hidden: torch.Tensor, norm: GpuWeight, head: GpuWeight) -> HeadOutput:
        logits = self._torch.norm_head(hidden, _plain(norm), _plain(head))
        return (
            HeadOutput(logits=logits) if self._step.head is HeadResult.LOGITS else best_of(logits)
        )


def _plain(weight: GpuWeight) -> TorchWeight:
    bias = None if weight.bias is None else weight.bias.to(weight.values.dtype)
    return TorchWeight(values=weight.values, bias=bias)


def _normed(weight: GpuWeight) -> TorchWeight:
    """The norm is in the columns, so what is left of it is ones."""
    plain = _plain(weight)
    ones = torch.ones_like(plain.values[0])
    return TorchWeight(values=plain.values, bias=plain.bias, input_norm=ones)


def regimes(asked: list[tuple[str, int]] | None = None, max_skinny_tokens: int = 4) -> Regimes:
    """The same operations for every number of tokens; ``asked`` takes (regime, tokens)."""

    def named(name: str) -> type[StandInOperations]:
        class Named(StandInOperations):
            def __init__(self, step: GpuStep) -> None:
                super().__init__(step)
                if asked is not None:
                    asked.append((name, step.batch.num_tokens))

        return Named

    return Regimes(
        one=named("one"),
        skinny=named("skinny"),
        large=named("large"),
        max_skinny_tokens=max_skinny_tokens,
    )
