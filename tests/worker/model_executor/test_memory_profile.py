"""The pool is what a measured step leaves, and what does not fit is told instead of suffered."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.worker.model_executor.tiny_models import load_tiny, save_tiny

from mizzen_worker.contracts.batch import PendingStep, Runner, RunnerLimits, ScheduleBatch
from mizzen_worker.contracts.errors import DeviceError, ModelLoadError
from mizzen_worker.model_executor.batch_check import require_sound
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.largest_step import trial_steps
from mizzen_worker.model_executor.memory_profile import SizingRequest, size_pool
from mizzen_worker.model_executor.runner_options import RunnerOptions

LIMITS = RunnerLimits(max_slots=6, num_pages=1, page_size=16, context_length=100, vocab_size=64)
PAGE_BYTES = 1000


class _Meter:
    """A device of 10,000,000 bytes; what the scripted runner takes is added."""

    def __init__(self, total: int = 10_000_000) -> None:
        self.total = total
        self.now = 600_000
        self.highest = 0

    def release(self) -> None:
        self.now = 600_000

    def free_and_total(self) -> tuple[int, int]:
        return self.total - 1_000_000, self.total

    def held(self) -> int:
        return self.now

    def reset_peak(self) -> None:
        self.highest = self.now

    def peak(self) -> int:
        return self.highest

    def take(self, num_bytes: int) -> None:
        self.highest = max(self.highest, self.now + num_bytes)


class _Runner:
    """Takes memory by rows and tokens, as a model would."""

    def __init__(self, limits: RunnerLimits, meter: _Meter) -> None:
        self.limits = limits
        self._meter = meter
        self._pool_bytes = (limits.num_pages + 1) * PAGE_BYTES

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        require_sound(batch, self.limits)
        tokens = sum(row.num_new for row in batch.extends) + len(batch.decodes.slots)
        self._meter.take(self._pool_bytes * bool(batch.extends) + 1000 * tokens)
        return _Done()


class _Done:
    def settle(self) -> None:  # type: ignore[override]
        return None


def _request(kv_tokens: int | None = None, **changes: int) -> SizingRequest:
    return SizingRequest(
        limits=LIMITS,
        max_new_tokens=250,
        page_bytes=PAGE_BYTES,
        kv_tokens=kv_tokens,
        fraction=0.9,
        **({"num_graphs": 0} | changes),
    )


def _make(meter: _Meter) -> Callable[[RunnerLimits], Runner]:
    return lambda limits: _Runner(limits, meter)  # type: ignore[return-value]


def test_the_pool_is_what_weights_and_the_largest_step_leave() -> None:
    meter = _Meter()
    # 250 prompt tokens in three rows of a context of 100, three more rows decode.
    left = 9_000_000 - 1_000_000 - 253 * 1000
    assert size_pool(_request(), meter, _make(meter)) == left // PAGE_BYTES - 1


def test_graphs_are_set_aside_with_the_memory_of_one_decode_step() -> None:
    meter = _Meter()
    without = size_pool(_request(), meter, _make(meter))
    # 6 rows take 6,000 bytes: six pages; a graph's own 8 MiB do not fit here at all.
    with pytest.raises(ModelLoadError, match="no room for KV memory"):
        size_pool(_request(num_graphs=1), meter, _make(meter))
    assert without == 7746


def test_graphs_are_set_aside_with_their_share_of_the_largest_step() -> None:
    total = 300_000_000
    sums = []
    for captured in (0, 100, 1000):
        meter = _Meter(total)
        request = _request(num_graphs=1, captured_tokens=captured)
        sums.append(size_pool(request, meter, _make(meter)))
    # 250 tokens take 253,000 bytes; 100 of them 101,200, more than 6 decode rows; never more.
    few, some, every = (8_388_608 + taken for taken in (6_000, 101_200, 253_000))
    left = int(total * 0.9) - 1_000_000 - 253_000
    assert sums == [(left - taken) // PAGE_BYTES - 1 for taken in (few, some, every)]


def test_what_was_asked_for_is_given_where_it_fits() -> None:
    meter = _Meter()
    assert size_pool(_request(kv_tokens=16 * 100), meter, _make(meter)) == 100


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), DeviceError("step 1 failed")])
def test_a_step_that_does_not_fit_names_the_flags(error: Exception) -> None:
    def fail(limits: RunnerLimits) -> Runner:
        if isinstance(error, DeviceError):
            raise error from torch.OutOfMemoryError("full")
        raise error

    with pytest.raises(
        ModelLoadError, match=r"250 prompt tokens, 6 rows.*lower --max-chunk-tokens"
    ):
        size_pool(_request(), _Meter(), fail)


def test_other_failures_of_the_trial_are_not_told_as_lack_of_memory() -> None:
    def fail(limits: RunnerLimits) -> Runner:
        message = "illegal address"
        raise DeviceError(message)

    with pytest.raises(DeviceError, match="illegal address"):
        size_pool(_request(), _Meter(), fail)


@pytest.mark.parametrize("max_new_tokens", [1, 16, 99, 250, 10_000])
def test_trial_steps_keep_the_contract_of_every_step(max_new_tokens: int) -> None:
    steps = trial_steps(LIMITS, max_new_tokens=max_new_tokens)
    limits = RunnerLimits(
        max_slots=6, num_pages=steps.num_pages, page_size=16, context_length=100, vocab_size=64
    )
    for batch in (steps.largest, steps.decode):
        require_sound(batch, limits)
        assert batch.num_rows == 6
    num_new = sum(row.num_new for row in steps.largest.extends)
    assert num_new == min(max_new_tokens, 6 * 99)
    pages = np.concatenate([write.pages for write in steps.largest.page_writes])
    assert sorted(pages.tolist()) == list(range(1, steps.num_pages + 1))


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_a_real_runner_runs_the_trial(tmp_path: Path, variant: str) -> None:
    save_tiny(tmp_path, variant)
    runner = load_tiny(tmp_path, "torch")
    steps = trial_steps(runner.limits, max_new_tokens=40)
    assert steps.num_pages <= runner.limits.num_pages
    for batch in (steps.largest, steps.decode):
        assert len(runner.launch(batch).settle().sampled_ids) == 6


def test_a_cpu_is_told_how_much(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    options = RunnerOptions(model=tmp_path, kv_tokens=None, page_size=16, max_slots=2)
    with pytest.raises(Exception, match="not measured; give --kv-tokens"):
        load_runner(options, lambda done, total: None)
