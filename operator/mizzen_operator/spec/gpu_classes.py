"""Owns how much memory a GPU of each class has: common ones, and those of the operator's settings.

Does not own what takes it (``planner/memory_fit``). Sizes are bytes: what the driver shows, which
is less than what is printed on the box.
"""

from collections.abc import Iterable, Mapping

MIB = 1 << 20
COMMON_GPU_CLASSES: Mapping[str, int] = {
    "nvidia-a10": 23_028 * MIB,
    "nvidia-a10g": 23_028 * MIB,
    "nvidia-l4": 23_034 * MIB,
    "nvidia-a100-40gb": 40_960 * MIB,
    "nvidia-l40s": 46_068 * MIB,
    "nvidia-h100-80gb": 81_559 * MIB,
    "nvidia-a100-80gb": 81_920 * MIB,
    "nvidia-h100-nvl": 95_830 * MIB,
    "nvidia-h200": 143_771 * MIB,
}

GpuClass = tuple[str, int]
"""Name, and bytes of one GPU."""


def gpu_classes(own: Iterable[GpuClass]) -> Mapping[str, int]:
    """All classes; those of the operator's settings win."""
    return {**COMMON_GPU_CLASSES, **dict(own)}
