"""What benchmarks tell of the device beside their times."""

import ctypes

import pytest
import torch

from mizzen_worker.bench import observers
from mizzen_worker.bench.observers import (
    ExpertObserver,
    NvmlCounters,
    Observers,
    PowerCounts,
    PowerObserver,
    observers_of,
)
from mizzen_worker.layers.gpu.expert_tally import ExpertTally


class Library:
    """As much of NVML as is called, with counts of its own."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.millijoules = 0
        self.capped_ns = 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: object, out: object) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.millijoules
        return self.status

    def nvmlDeviceGetViolationStatus(self, device: object, policy: int, out: object) -> int:  # noqa: N802
        assert policy == 0, "the power limit's"
        times = ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))
        times[0], times[1] = 10**18, self.capped_ns
        return self.status


class Counters:
    def __init__(self) -> None:
        self.counts = PowerCounts(joules=100.0, capped_s=5.0)

    def read(self) -> PowerCounts:
        return self.counts


def test_nvml_counts_are_told_in_joules_and_seconds() -> None:
    library = Library()
    library.millijoules, library.capped_ns = 2_500, 3_000_000_000
    counts = NvmlCounters(library, ctypes.c_void_p()).read()
    assert counts == PowerCounts(joules=2.5, capped_s=3.0)


def test_a_gpu_without_such_counters_is_an_error() -> None:
    with pytest.raises(OSError, match="status 3"):
        NvmlCounters(Library(status=3), ctypes.c_void_p()).read()


def test_power_is_that_of_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, clock = Counters(), iter((0.0, 10.0, 14.0))
    monkeypatch.setattr(observers.time, "perf_counter", lambda: next(clock))
    observer = PowerObserver(counters)
    counters.counts = PowerCounts(joules=1_000.0, capped_s=6.0)
    observer.begin()
    counters.counts = PowerCounts(joules=3_800.0, capped_s=7.0)
    assert observer.end() == {"W": 700.0, "power-capped": 0.25}


def test_experts_are_those_read_since_the_beginning() -> None:
    tally = ExpertTally()
    observer = Observers([ExpertObserver(tally)])
    assert observer.end() == {}, "a model without experts"
    counts = tally.begin(torch.device("cpu"))
    counts += torch.tensor([50, 2], dtype=torch.int32)
    observer.begin()
    counts += torch.tensor([80, 4], dtype=torch.int32)
    assert observer.end() == {"experts/step": 20.0}


def test_of_a_cpu_nothing_is_told() -> None:
    observer = observers_of("cpu", ExpertTally())
    observer.begin()
    assert observer.end() == {}
