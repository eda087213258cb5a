"""Owns the way of numbers between host and device; knows nothing of what they mean.

Host numbers travel as packed arrays (``StepPack``), one copy each: a step's have two, so that its
forward begins before the rest is prepared. On a CUDA device the copies go through page-locked
buffers and nobody waits when a step is launched. Invariant: a buffer is not overwritten before the
copy out of it, ``_RING_SIZE`` uploads ago, has ended.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mizzen_worker.contracts.batch import Float32Array, Int32Array, Int64Array

_RING_SIZE = 4
"""Two steps are in flight as a rule."""


class CopyEvent(Protocol):
    """A mark in the device's queue of work, as ``torch.cuda.Event`` is one."""

    def record(self) -> None:
        """Set the mark behind everything queued so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has passed the mark; at once where it was never set."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """The arrays of a step on the device, by the names they were packed under."""

    longs: dict[str, torch.Tensor]
    """int64."""
    integers: dict[str, torch.Tensor]
    """The same numbers as int32, as they travelled; not those that were packed as wide ones."""
    reals: dict[str, torch.Tensor]
    """float32."""

    def joined(self, other: "StagedStep") -> "StagedStep":
        """The arrays of both."""
        return StagedStep(
            longs=self.longs | other.longs,
            integers=self.integers | other.integers,
            reals=self.reals | other.reals,
        )


class StepPack:
    """Collects named flat arrays of one step and packs them into one int32 array.

    Wide integers (int64) take two words each and lie first, so that they are aligned; then
    integers, then reals. Sizes alone decide the layout.
    """

    def __init__(self) -> None:
        self._wides: dict[str, Int64Array] = {}
        self._integers: dict[str, npt.NDArray[np.integer]] = {}
        self._reals: dict[str, Float32Array] = {}

    def add_wides(self, name: str, values: Int64Array) -> None:
        """Add [n] int64."""
        self._wides[name] = values

    def add_integers(self, name: str, values: npt.NDArray[np.integer]) -> None:
        """Add [n] integers that fit int32; they arrive as int64."""
        self._integers[name] = values

    def add_reals(self, name: str, values: Float32Array) -> None:
        """Add [n] float32."""
        self._reals[name] = values

    def offsets(self) -> dict[str, int]:
        """Where each array of integers begins in the packed words."""
        sizes = [2 * len(values) for values in self._wides.values()]
        offset, found = sum(sizes), {}
        for name, values in self._integers.items():
            found[name] = offset
            offset += len(values)
        return found

    def size(self, name: str) -> int:
        """Length of an array of integers; 0 where there is none."""
        return len(self._integers.get(name, ()))

    def words(self) -> Int32Array:
        """Pack everything."""
        parts = [values.view(np.int32) for values in self._wides.values()]
        parts += [values.astype(np.int32, copy=False) for values in self._integers.values()]
        parts += [values.view(np.int32) for values in self._reals.values()]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def unpack(self, words: torch.Tensor) -> StagedStep:
        """Views of the packed array, wherever it lies."""
        num_wide = 2 * sum(map(len, self._wides.values()))
        num_integers = sum(map(len, self._integers.values()))
        wides = words[:num_wide].view(torch.int64)
        integers = words[num_wide : num_wide + num_integers]
        reals = words[num_wide + num_integers :].view(torch.float32)
        longs = _split(wides, self._wides) | _split(integers.long(), self._integers)
        return StagedStep(
            longs=longs,
            integers=_split(integers, self._integers),
            reals=_split(reals, self._reals),
        )


def _split(
    region: torch.Tensor, arrays: Mapping[str, npt.NDArray[np.generic]]
) -> dict[str, torch.Tensor]:
    sizes = [len(values) for values in arrays.values()]
    return dict(zip(arrays, torch.split(region, sizes), strict=True)) if sizes else {}


class PendingDownload(Protocol):
    """Tensors on their way to the host."""

    def wait(self) -> list[npt.NDArray[Any]]:
        """Wait for them. The arrays belong to the caller."""
        ...


class DeviceLink(Protocol):
    """Moves numbers between the host and one device."""

    def upload(self, words: Int32Array) -> torch.Tensor:
        """Bring [n] int32 to the device; the caller gives the array away."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        """Start to bring tensors to the host."""
        ...


class HostLink:
    """The device is the host: nothing is copied."""

    def upload(self, words: Int32Array) -> torch.Tensor:
        """See ``DeviceLink``."""
        # torch gives an empty array a stride of which it then takes no view of another type.
        return torch.from_numpy(words) if len(words) else torch.empty(0, dtype=torch.int32)

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        """See ``DeviceLink``."""
        return _Arrived(tensors)


class _Arrived:
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[npt.NDArray[Any]]:
        return [tensor.numpy() for tensor in self._tensors]


class _Buffer:
    def __init__(self, event: CopyEvent) -> None:
        self.words = torch.empty(0, dtype=torch.int32)
        self.event = event


class QueuedLink:
    """Copies are queued on the device's current stream; only ``wait`` waits.

    Steps are settled in order, at most two are in flight, and a step uploads twice: so the ring
    never waits either, and its events are the guard of that.
    """

    def __init__(
        self, device: torch.device, make_event: Callable[[], CopyEvent], *, is_pinned: bool
    ) -> None:
        self._device = device
        self._make_event = make_event
        self._is_pinned = is_pinned
        self._ring = [_Buffer(make_event()) for _ in range(_RING_SIZE)]
        self._next = 0

    def upload(self, words: Int32Array) -> torch.Tensor:
        """See ``DeviceLink``."""
        buffer = self._ring[self._next]
        self._next = (self._next + 1) % _RING_SIZE
        buffer.event.synchronize()
        if len(buffer.words) < len(words):
            size = 1 << (len(words) - 1).bit_length()
            buffer.words = torch.empty(size, dtype=torch.int32, pin_memory=self._is_pinned)
        source = buffer.words[: len(words)]
        source.numpy()[:] = words
        target = torch.empty(len(words), dtype=torch.int32, device=self._device)
        target.copy_(source, non_blocking=True)
        buffer.event.record()
        return target

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        """See ``DeviceLink``."""
        targets = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._is_pinned)
            for tensor in tensors
        ]
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)
        event = self._make_event()
        event.record()
        return _Queued(targets, event)


class _Queued:
    def __init__(self, targets: Sequence[torch.Tensor], event: CopyEvent) -> None:
        self._targets = targets
        self._event = event

    def wait(self) -> list[npt.NDArray[Any]]:
        self._event.synchronize()
        return [target.numpy() for target in self._targets]


def link_to(device: torch.device) -> DeviceLink:
    """Choose the link for a device."""
    if device.type == "cpu":
        return HostLink()
    return QueuedLink(device, torch.cuda.Event, is_pinned=device.type == "cuda")
