"""What benchmarks tell of the device beside their times."""

import ctypes
import math
from types import SimpleNamespace

import pytest
import torch

from mizzen_worker.bench.device_use import (
    DeviceMeter,
    DeviceUse,
    PowerCounts,
    meter_of,
    open_counters,
    use_columns,
)
from mizzen_worker.bench.report import table
from mizzen_worker.layers.gpu.expert_tally import ExpertTally

UUID = "01234567-89ab-cdef-0123-456789abcdef"
GPU = torch.device("cuda", 0)


class Library:
    """As much of NVML as is called, with counts of its own."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.millijoules = 2_500
        self.capped_ns = 3_000_000_000

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: object) -> int:  # noqa: N802
        assert uuid == f"GPU-{UUID}".encode()
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: object, out: object) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.millijoules
        return self.status

    def nvmlDeviceGetViolationStatus(self, device: object, policy: int, out: object) -> int:  # noqa: N802
        assert policy == 0, "the power limit's"
        times = ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))
        times[0], times[1] = 10**18, self.capped_ns
        return self.status

    def nvmlDeviceGetEnforcedPowerLimit(self, device: object, out: object) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_uint))[0] = 700_000
        return 0


class Counters:
    def __init__(self) -> None:
        self.counts = PowerCounts(joules=100.0, capped_s=5.0)

    def read(self) -> PowerCounts:
        return self.counts


@pytest.fixture
def _known_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.usefixtures("_known_gpu")
def test_nvml_counts_are_told_in_joules_seconds_and_watts() -> None:
    counters = open_counters(GPU, Library())
    assert counters.read() == PowerCounts(joules=2.5, capped_s=3.0)
    assert counters.limit_w() == 700.0


@pytest.mark.usefixtures("_known_gpu")
def test_a_gpu_without_such_counters_is_told_nothing_of(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="status 3"):
        open_counters(GPU, Library(status=3))
    with pytest.raises(AttributeError, match="nvmlInit_v2"):
        open_counters(GPU, SimpleNamespace())
    meter = meter_of("cuda:0", ExpertTally())
    assert "power is not told" in caplog.text, "there is no driver here"
    assert use_columns([meter.end()]) == {}


def test_power_is_that_of_the_time_between() -> None:
    counters, clock = Counters(), iter((0.0, 10.0, 14.0))
    meter = DeviceMeter(ExpertTally(), counters, clock=lambda: next(clock))
    counters.counts = PowerCounts(joules=1_000.0, capped_s=6.0)
    meter.begin()
    counters.counts = PowerCounts(joules=3_800.0, capped_s=7.0)
    use = meter.end()
    assert (use.watts, use.capped_share) == (700.0, 0.25)


def test_runs_of_a_row_are_told_together() -> None:
    def use(elapsed_s: float, joules: float, experts: tuple[int, int]) -> DeviceUse:
        power = PowerCounts(joules=joules, capped_s=0.5)
        return DeviceUse(elapsed_s=elapsed_s, power=power, experts=experts)

    columns = use_columns([use(1.5, 900.0, (80, 4)), use(2.5, 1_500.0, (40, 2))])
    assert columns == {"W": 600.0, "power-capped": 0.25, "experts/step": 20.0}


def test_what_is_too_little_to_tell_keeps_its_column() -> None:
    short = DeviceUse(elapsed_s=0.5, power=PowerCounts(joules=200.0, capped_s=0.0), experts=(0, 0))
    columns = use_columns([short])
    assert set(columns) == {"W", "power-capped", "experts/step"}
    assert all(math.isnan(value) for value in columns.values())
    rows = [columns, {"W": 600.0, "power-capped": 0.25, "experts/step": 20.0}]
    assert table(rows).splitlines()[1].split() == ["-", "-", "-"]


def test_experts_are_those_read_since_the_beginning() -> None:
    tally = ExpertTally()
    meter = DeviceMeter(tally, None)
    assert meter.end().experts is None, "a model without experts"
    counts = tally.begin(torch.device("cpu"))
    counts += torch.tensor([50, 2], dtype=torch.int32)
    meter.begin()
    counts += torch.tensor([80, 4], dtype=torch.int32)
    assert meter.end().experts == (80, 4)


def test_of_a_cpu_nothing_is_told() -> None:
    meter = meter_of("cpu", ExpertTally())
    meter.begin()
    assert use_columns([meter.end()]) == {}
