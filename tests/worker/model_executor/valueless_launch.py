"""Launches steps on a device without values, as a program: whatever asks for one raises.

Kernels are noted and not launched (``recorded_kernels``), so there need be no GPU.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
from tests.worker.model_executor.test_device_link import PARAMS, entering_batch

from mizzen_worker.contracts.batch import DecodeRows, Int32Array, RunnerLimits, ScheduleBatch
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.kernels.gpu.compile_ahead import recorded_kernels
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.device_link import HostLink, PendingDownload
from mizzen_worker.model_executor.model_runner import ModelRunner


class _ValuelessLink:
    """To a device without values: whoever asks it for one gets torch's error."""

    def __init__(self) -> None:
        self.num_uploads = 0
        self.shapes: list[tuple[int, ...]] = []

    def upload(self, words: Int32Array) -> torch.Tensor:
        self.num_uploads += 1
        return torch.empty(len(words), dtype=torch.int32, device="meta")

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        return HostLink().download(())


class _ValuelessForward:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        return torch.empty(len(batch.sampled_tokens), self._vocab_size, device="meta")


def main() -> None:
    triton.runtime.driver.set_active(ClaimedDriver(90))
    limits = RunnerLimits(max_slots=8, num_pages=16, page_size=8, context_length=64, vocab_size=600)
    link = _ValuelessLink()
    runner = ModelRunner(_ValuelessForward(600), limits, torch.device("meta"), link)
    with recorded_kernels() as kernels:
        runner.launch(entering_batch(PARAMS))
        assert (link.num_uploads, link.shapes) == (2, [(2, 6), (4,), (4, 3), (4, 3)])
        slots = np.arange(1, 7, dtype=np.int32)
        for step in (2, 3):
            decodes = DecodeRows(slots=slots, starts=np.full_like(slots, step + 1))
            runner.launch(
                ScheduleBatch(step=step, extends=(), decodes=decodes, slot_inits=(), page_writes=())
            )
            assert (link.num_uploads, link.shapes) == (2 * step, [(2, 6), (2,), (2, 3), (2, 3)])
    assert kernels


if __name__ == "__main__":
    main()
