"""On a real GPU a launch waits for nothing, and what passes through page-locked memory is whole.

A kernel that spins keeps the GPU busy: whatever waits for the device would end only behind it.
CUDA takes about a thousand kernels that wait their turn, and lets whoever queues more wait too: one
step of a model of one layer stays below that.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.worker.model_executor.test_device_link import PARAMS, entering_batch
from tests.worker.model_executor.tiny_models import load_tiny, save_tiny

from mizzen_worker.contracts.batch import DecodeRows, PendingStep, Runner, ScheduleBatch
from mizzen_worker.model_executor.device_link import QueuedLink, link_to
from mizzen_worker.model_executor.runner_options import ComputeType

pytestmark = pytest.mark.gpu

BUSY_CYCLES = 3_000_000_000
"""More than a second."""
SLOTS = np.arange(1, len(PARAMS) + 1, dtype=np.int32)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Anything that torch knows to wait for the device is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that it does not know everything.
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def busy_device() -> torch.cuda.Event:
    """Let the GPU spin; the event is reached when it is done."""
    torch.cuda._sleep(BUSY_CYCLES)
    done = torch.cuda.Event()
    done.record()
    return done


def launches(runner: Runner) -> Iterator[PendingStep]:
    """Requests of every kind enter, then decode."""
    yield runner.launch(entering_batch(PARAMS))
    for step in range(2, 6):
        decodes = DecodeRows(slots=SLOTS, starts=np.full_like(SLOTS, step + 1))
        yield runner.launch(
            ScheduleBatch(step=step, extends=(), decodes=decodes, slot_inits=(), page_writes=())
        )


def tokens_of(pending: list[PendingStep]) -> list[list[int]]:
    return [step.settle().sampled_ids.tolist() for step in pending]


@pytest.mark.parametrize("kind", [ComputeType.FLOAT32, ComputeType.BFLOAT16])
@pytest.mark.parametrize("variant", ["qwen3-biases", "mistral-window"])
def test_a_launch_waits_for_nothing(tmp_path: Path, variant: str, kind: ComputeType) -> None:
    save_tiny(tmp_path, variant, num_hidden_layers=1)
    runner = load_tiny(tmp_path, "cuda", 16, compute_type=kind)
    for _ in range(2):  # Libraries and allocators settle in.
        expected = [tokens_of([step])[0] for step in launches(runner)]
    steps, found = launches(runner), []
    for number in range(3):
        done = busy_device()
        with without_waiting():
            pending = next(steps)
        assert not done.query(), f"launch {number} waited for the device"
        found += tokens_of([pending])
    assert found == expected[:3]


def test_page_locked_buffers_are_not_overwritten_while_they_are_read() -> None:
    link = link_to(torch.device("cuda"))
    assert isinstance(link, QueuedLink)
    arrays = [np.arange(first, 40_000 * (1 + first % 3), dtype=np.int32) for first in range(9)]
    torch.cuda._sleep(BUSY_CYCLES // 20)
    with without_waiting():
        uploads = [link.upload(array.copy()) for array in arrays]
    assert all(buffer.words.is_pinned() for buffer in link._ring)
    for pending, array in zip([link.download([upload]) for upload in uploads], arrays, strict=True):
        np.testing.assert_array_equal(pending.wait()[0], array)


def test_a_download_begins_behind_what_was_queued() -> None:
    link = link_to(torch.device("cuda"))
    for is_busy in (False, True):  # The first time around loads kernels, which waits.
        values = torch.zeros(1000, device="cuda")
        done = busy_device() if is_busy else torch.cuda.Event()
        with without_waiting():
            values += 7
            pending = link.download([values, values[:0]])
            values += 1
        assert is_busy is not done.query()
        filled, empty = pending.wait()
        assert filled.tolist() == [7.0] * 1000
        assert len(empty) == 0
