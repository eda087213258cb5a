"""Owns a driver that lets Triton compile for a GPU without touching one; launches nothing."""

import torch
from triton.backends.compiler import GPUTarget

_THREADS_PER_WARP = 32


class ClaimedDriver:
    """As much of a driver as compilation asks for."""

    launcher_cls = None

    def __init__(self, capability: int) -> None:
        """``capability`` as in 90."""
        self._target = GPUTarget("cuda", capability, _THREADS_PER_WARP)

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
