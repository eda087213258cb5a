"""Owns what a device is seen to do while workloads run there; runs none.

What a run drew and whether its power limit held its clocks down says why two machines of a kind
differ, and whether less idling or less work would make a slow run faster. NVML, the driver's own
library, counts both since the driver was loaded, so nothing is sampled; where it is missing nothing
is told.
"""

import ctypes
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mizzen_worker.layers.gpu.expert_tally import ExpertTally

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
_POLICY_POWER = 0
"""``NVML_PERF_POLICY_POWER``."""
_LEAST_S = 2.0
"""The counters move in steps: less time says little about power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCounts:
    """Of one GPU since its driver was loaded; ``capped_s``: its clocks were held down for power."""

    joules: float
    capped_s: float


class PowerCounters(Protocol):
    """Reads a GPU's counters."""

    def read(self) -> PowerCounts:
        """The counts now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What happened between ``begin`` and ``end`` of a meter; None: not known of this device.

    ``experts``: experts read, and layers that read them, in steps of few tokens.
    """

    elapsed_s: float
    power: PowerCounts | None
    experts: tuple[int, int] | None

    @property
    def watts(self) -> float:
        """On average; NaN where nothing is known."""
        return math.nan if self.power is None else self.power.joules / self.elapsed_s

    @property
    def capped_share(self) -> float:
        """Of the time, in which the power limit held clocks down; NaN where nothing is known."""
        return math.nan if self.power is None else self.power.capped_s / self.elapsed_s


class DeviceMeter:
    """Looks at one device."""

    def __init__(
        self,
        tally: ExpertTally,
        counters: PowerCounters | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tally = tally
        self._counters = counters
        self._clock = clock
        self._began = clock(), None if counters is None else counters.read()

    def begin(self) -> None:
        """Note where counters stand."""
        self._tally.take()
        self._began = self._clock(), None if self._counters is None else self._counters.read()

    def end(self) -> DeviceUse:
        """What happened since."""
        began_s, counts = self._began
        elapsed_s = self._clock() - began_s
        power = None
        if self._counters is not None and counts is not None:
            now = self._counters.read()
            power = PowerCounts(
                joules=now.joules - counts.joules, capped_s=now.capped_s - counts.capped_s
            )
        return DeviceUse(elapsed_s=elapsed_s, power=power, experts=self._tally.take())


def use_columns(uses: Sequence[DeviceUse]) -> Mapping[str, float]:
    """Of a row's runs together, by the name of a table's column; NaN: too little to tell."""
    use = _together(uses)
    columns: dict[str, float] = {}
    if use.power is not None:
        is_told = use.elapsed_s >= _LEAST_S
        columns["W"] = use.watts if is_told else math.nan
        columns["power-capped"] = use.capped_share if is_told else math.nan
    if use.experts is not None:
        num_experts, num_layers = use.experts
        columns["experts/step"] = num_experts / num_layers if num_layers else math.nan
    return columns


def _together(uses: Sequence[DeviceUse]) -> DeviceUse:
    """Several uses of one device as one."""
    powers = [use.power for use in uses if use.power is not None]
    experts = [use.experts for use in uses if use.experts is not None]
    return DeviceUse(
        elapsed_s=sum(use.elapsed_s for use in uses),
        power=PowerCounts(
            joules=sum(power.joules for power in powers),
            capped_s=sum(power.capped_s for power in powers),
        )
        if powers
        else None,
        experts=(sum(count for count, _ in experts), sum(layers for _, layers in experts))
        if experts
        else None,
    )


class _ViolationTime(ctypes.Structure):
    """``nvmlViolationTime_t``; the violation in nanoseconds."""

    _fields_ = (("reference_time", ctypes.c_ulonglong), ("violation_time", ctypes.c_ulonglong))


class NvmlCounters:
    """Counters of one GPU in NVML."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device

    def read(self) -> PowerCounts:
        """See ``PowerCounters``; raises ``OSError`` where this GPU has no such counters."""
        library, device = self._library, self._device
        millijoules = ctypes.c_ulonglong()
        capped = _ViolationTime()
        _require(library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)))
        _require(library.nvmlDeviceGetViolationStatus(device, _POLICY_POWER, ctypes.byref(capped)))
        return PowerCounts(joules=millijoules.value / 1e3, capped_s=capped.violation_time / 1e9)

    def limit_w(self) -> float:
        """Watts that the GPU may draw."""
        milliwatts = ctypes.c_uint()
        _require(
            self._library.nvmlDeviceGetEnforcedPowerLimit(self._device, ctypes.byref(milliwatts))
        )
        return milliwatts.value / 1e3


def _require(status: int) -> None:
    if status:
        message = f"NVML answered with status {status}"
        raise OSError(message)


def open_counters(device: torch.device, library: Any = None) -> NvmlCounters:
    """Counters of a GPU; raises ``OSError`` or ``AttributeError`` where NVML has none.

    ``library`` None: the driver's.
    """
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    nvml = ctypes.CDLL(_LIBRARY) if library is None else library
    _require(nvml.nvmlInit_v2())
    handle = ctypes.c_void_p()
    _require(nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)))
    counters = NvmlCounters(nvml, handle)
    counters.read()
    return counters


def meter_of(device: str, tally: ExpertTally) -> DeviceMeter:
    """A meter of all that can be seen of a device, by its name for torch."""
    counters = None
    if device.startswith("cuda"):
        try:
            counters = open_counters(torch.device(device))
        except (AttributeError, OSError) as error:
            logger.warning("power is not told", extra={"reason": str(error)})
    return DeviceMeter(tally, counters)
