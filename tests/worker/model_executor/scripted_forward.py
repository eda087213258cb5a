"""A forward whose logits are a pure function of token and position: no model, no KV.

The logits after a token depend on that token, so a wrong last token, a wrong position or logits of
another row change what is sampled. Rows can be spoiled.
"""

import numpy as np
import pytest
import torch
from tests.worker.model_executor.rerun_graphs import RerunGraphs, captured_again

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.kernels.gpu.launching import IS_INTERPRETED
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.model_runner import ModelRunner


class ScriptedForward:
    """Random logits by (token, position)."""

    def __init__(self, vocab_size: int, spread: float = 2.0, device: str = "cpu") -> None:
        self._device = device
        generator = np.random.default_rng(12)
        self._by_token = generator.normal(0, spread, (vocab_size, vocab_size)).astype(np.float32)
        self._by_position = generator.normal(0, spread, (64, vocab_size)).astype(np.float32)
        self.spoiled_slots: set[int] = set()
        self.spoiling_tokens: set[int] = set()
        """Tokens after which there are no finite logits."""
        self.num_logits: list[int] = []
        self.batches: list[ForwardBatch] = []

    def expected(self, token: int, position: int) -> np.ndarray:
        """[vocab] float32."""
        return self._by_token[token] + self._by_position[position % 64]

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        wanted = batch.sampled_tokens.tolist()
        self.num_logits.append(len(wanted))
        starts = batch.device_row_starts.cpu().numpy()  # The host's may be bounds.
        rows = np.searchsorted(starts, wanted, side="right") - 1
        slots = batch.row_slots.cpu()[torch.from_numpy(rows)].tolist()
        logits = np.zeros((len(wanted), self._by_token.shape[1]), dtype=np.float32)
        for index, (token, slot) in enumerate(zip(wanted, slots, strict=True)):
            position = int(batch.positions[token])
            logits[index] = self.expected(int(batch.token_ids[token]), position)
            if slot in self.spoiled_slots or int(batch.token_ids[token]) in self.spoiling_tokens:
                logits[index, 3] = np.nan
        return torch.from_numpy(logits).to(self._device)


def scripted_runner(
    vocab_size: int = 50,
    max_slots: int = 8,
    context_length: int = 256,
    num_pages: int | None = None,
    device: str = "cpu",
    graphs: RerunGraphs | None = None,
) -> tuple[ModelRunner, ScriptedForward]:
    """A real runner on a scripted forward; decode steps are captured ones with ``graphs``."""
    if graphs is not None and not IS_INTERPRETED:
        reason = "missing: the interpreter (tests/gpu captures on a GPU)"
        pytest.skip(reason, allow_module_level=True)
    limits = RunnerLimits(
        max_slots=max_slots,
        num_pages=num_pages or max_slots * context_length // 4,
        page_size=4,
        context_length=context_length,
        vocab_size=vocab_size,
    )
    forward = ScriptedForward(vocab_size, device=device)
    make = None if graphs is None else captured_again(forward, limits, graphs)
    runner = ModelRunner(forward, limits, torch.device(device), make_captured=make)
    runner.warm_up(lambda done, total: None)
    return runner, forward
