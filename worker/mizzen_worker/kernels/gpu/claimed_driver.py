"""Owns a driver that lets Triton compile for a GPU without touching one; launches nothing."""

from collections.abc import Mapping

import torch
from triton.backends.compiler import GPUTarget

_THREADS_PER_WARP = 32
SHARED_MEMORY_BY_CAPABILITY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that one program may take."""
_LEAST_SHARED = 101_376


class _ClaimedProperties:
    """What kernels ask of the device beside its capability."""

    def __init__(self, capability: int, num_multiprocessors: int) -> None:
        self._properties = {
            "multiprocessor_count": num_multiprocessors,
            "max_shared_mem": SHARED_MEMORY_BY_CAPABILITY.get(capability, _LEAST_SHARED),
        }

    def get_device_properties(self, device: int) -> Mapping[str, int]:
        """See Triton's ``CudaUtils``."""
        del device
        return self._properties


class ClaimedDriver:
    """As much of a driver as compilation asks for."""

    launcher_cls = None

    def __init__(self, capability: int, num_multiprocessors: int = 132) -> None:
        """``capability`` as in 90."""
        self._target = GPUTarget("cuda", capability, _THREADS_PER_WARP)
        self.utils = _ClaimedProperties(capability, num_multiprocessors)

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Index of the device."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """Handle of the stream."""
        del device
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        """Name of a type in a launcher, of which there is none."""
        return name
