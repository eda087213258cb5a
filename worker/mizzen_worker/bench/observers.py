"""Owns what is observed of a device while a workload runs there; times nothing.

What a run drew and whether its power limit held its clocks down says why two machines of a kind
differ, and which of two slow runs better kernels would help. NVML, the driver's own library, counts
both since the driver was loaded, so nothing is sampled; where it is missing nothing is told.
"""

import ctypes
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mizzen_worker.layers.gpu.expert_tally import ExpertTally

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
_POLICY_POWER = 0
"""``NVML_PERF_POLICY_POWER``."""


class Observer(Protocol):
    """Looks at a device from ``begin`` to ``end``."""

    def begin(self) -> None:
        """Note where counters stand."""
        ...

    def end(self) -> Mapping[str, float]:
        """What happened since, by the name of a table's column; empty where nothing is known."""
        ...


class Observers:
    """Several as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def begin(self) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.begin()

    def end(self) -> Mapping[str, float]:
        """See ``Observer``."""
        return {
            name: value for observer in self._observers for name, value in observer.end().items()
        }


class ExpertObserver:
    """Different experts that a step of few tokens read, a layer."""

    def __init__(self, tally: ExpertTally) -> None:
        self._tally = tally

    def begin(self) -> None:
        """See ``Observer``."""
        self._tally.take()

    def end(self) -> Mapping[str, float]:
        """See ``Observer``."""
        experts = self._tally.take()
        return {} if experts is None else {"experts/step": experts}


class _ViolationTime(ctypes.Structure):
    """``nvmlViolationTime_t``: nanoseconds."""

    _fields_ = (("reference_time", ctypes.c_ulonglong), ("violation_time", ctypes.c_ulonglong))


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


class NvmlCounters:
    """Counters of one GPU in NVML."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device

    def read(self) -> PowerCounts:
        """See ``PowerCounters``; raises ``OSError`` where this GPU has no such counters."""
        millijoules = ctypes.c_ulonglong()
        capped = _ViolationTime()
        _require(
            self._library.nvmlDeviceGetTotalEnergyConsumption(
                self._device, ctypes.byref(millijoules)
            )
        )
        _require(
            self._library.nvmlDeviceGetViolationStatus(
                self._device, _POLICY_POWER, ctypes.byref(capped)
            )
        )
        return PowerCounts(joules=millijoules.value / 1e3, capped_s=capped.violation_time / 1e9)


def _require(status: int) -> None:
    if status:
        message = f"NVML answered with status {status}"
        raise OSError(message)


def open_counters(uuid: str) -> NvmlCounters:
    """Counters of the GPU with such a UUID (``GPU-...``); raises ``OSError``."""
    library = ctypes.CDLL(_LIBRARY)
    _require(library.nvmlInit_v2())
    device = ctypes.c_void_p()
    _require(library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)))
    counters = NvmlCounters(library, device)
    counters.read()
    return counters


class PowerObserver:
    """Watts on average, and the share of the time in which the power limit held clocks down."""

    def __init__(self, counters: PowerCounters) -> None:
        self._counters = counters
        self._began = counters.read(), time.perf_counter()

    def begin(self) -> None:
        """See ``Observer``."""
        self._began = self._counters.read(), time.perf_counter()

    def end(self) -> Mapping[str, float]:
        """See ``Observer``."""
        counts, began_at = self._began
        elapsed_s = time.perf_counter() - began_at
        now = self._counters.read()
        return {
            "W": (now.joules - counts.joules) / elapsed_s,
            "power-capped": min(1.0, (now.capped_s - counts.capped_s) / elapsed_s),
        }


def observers_of(device: str, tally: ExpertTally) -> Observers:
    """All that can be observed of a device, by its name for torch."""
    found: list[Observer] = [ExpertObserver(tally)]
    if device.startswith("cuda"):
        uuid = torch.cuda.get_device_properties(torch.device(device)).uuid
        try:
            found.append(PowerObserver(open_counters(f"GPU-{uuid}")))
        except OSError as error:
            logger.warning("power is not told", extra={"reason": str(error)})
    return Observers(found)
