"""Owns the path ``ScheduleBatch`` to ``StepResult`` on one device; plans nothing.

Implements ``contracts.batch.Runner``. On a CPU a step has run when ``launch`` returns; on a CUDA
device only ``settle`` waits.
"""

import numpy as np
import torch

from mizzen_worker.contracts.batch import (
    Int32Array,
    PendingStep,
    RunnerLimits,
    ScheduleBatch,
    StepResult,
)
from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.batch_check import require_sound
from mizzen_worker.model_executor.forward import Forward
from mizzen_worker.model_executor.slot_state import SlotState
from mizzen_worker.sampler.sampler import sample


class _LaunchedStep:
    """A step whose tokens lie on the device."""

    def __init__(self, step: int, tokens: torch.Tensor, is_finished: torch.Tensor) -> None:
        self._step = step
        self._tokens = tokens
        self._is_finished = is_finished

    def settle(self) -> StepResult:
        """See ``PendingStep``."""
        try:
            sampled_ids = self._tokens.to("cpu", torch.int32).numpy()
            is_finished = self._is_finished.cpu().numpy()
        except RuntimeError as error:
            message = f"step {self._step} failed on the device: {error}"
            raise DeviceError(message) from error
        return StepResult(step=self._step, sampled_ids=sampled_ids, is_finished=is_finished)


class ModelRunner:
    """Executes steps in order. Not thread safe."""

    def __init__(self, forward: Forward, limits: RunnerLimits, device: torch.device) -> None:
        self._forward = forward
        self._limits = limits
        self._device = device
        self._slots = SlotState(limits, device)

    @property
    def limits(self) -> RunnerLimits:
        """See ``Runner``."""
        return self._limits

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        """See ``Runner``."""
        require_sound(batch, self._limits)
        try:
            with torch.inference_mode():
                for init in batch.slot_inits:
                    self._slots.enter(init)
                for write in batch.page_writes:
                    self._slots.write_pages(write)
                tokens, is_finished = self._run_rows(batch)
        except RuntimeError as error:
            message = f"step {batch.step} failed on the device: {error}"
            raise DeviceError(message) from error
        return _LaunchedStep(batch.step, tokens, is_finished)

    def _run_rows(self, batch: ScheduleBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward and sample: the sampled rows' tokens [n] int64, and whether each ended [n]."""
        nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        if batch.num_rows == 0:
            return nothing
        forward_batch = self._build(batch)
        logits = self._forward.run(forward_batch)
        sampled_slots = [row.slot for row in batch.extends if row.is_sampled]
        sampled_slots += batch.decodes.slots.tolist()
        if not sampled_slots:
            return nothing
        tokens = sample(logits, self._slots.sampling_batch(sampled_slots, forward_batch))
        return tokens, self._slots.record(sampled_slots, forward_batch, tokens)

    def _build(self, batch: ScheduleBatch) -> ForwardBatch:
        """Tensors of the step; decode rows take their token from the slot's state."""
        extends, num_decodes = batch.extends, len(batch.decodes.slots)
        ones = np.ones(num_decodes, dtype=np.int32)
        counts = _joined([row.num_new for row in extends], ones)
        starts = _joined([row.start for row in extends], batch.decodes.starts)
        is_sampled = _joined([row.is_sampled for row in extends], ones).astype(np.bool_)
        row_starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
        offsets = np.arange(row_starts[-1], dtype=np.int64) - row_starts[:-1].repeat(counts)
        positions = self._to_device(starts.repeat(counts) + offsets)
        slots = _joined([row.slot for row in extends], batch.decodes.slots).astype(np.int64)
        row_slots, token_slots = self._to_device(slots), self._to_device(slots.repeat(counts))
        is_decode = self._to_device(np.arange(row_starts[-1]) >= row_starts[len(extends)])
        given = np.concatenate([*(row.token_ids for row in extends), 0 * ones]).astype(np.int64)
        page_size = self._limits.page_size
        pages = self._slots.page_table[token_slots, positions // page_size].long()
        is_masked = is_decode & self._slots.finished[token_slots]
        return ForwardBatch(
            token_ids=torch.where(
                is_decode, self._slots.last_tokens[token_slots], self._to_device(given)
            ),
            positions=positions,
            kv_locations=torch.where(is_masked, 0, pages) * page_size + positions % page_size,
            page_table=self._slots.page_table,
            row_slots=row_slots,
            sampled_tokens=self._to_device((row_starts[1:] - 1)[is_sampled].astype(np.int64)),
            row_starts=row_starts,
            row_lengths=starts + counts,
            page_size=page_size,
        )

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _joined(extends: list[int], decodes: Int32Array) -> Int32Array:
    """One value per row: the extends', then the decodes'."""
    return np.concatenate([np.array(extends, dtype=np.int32), decodes])
