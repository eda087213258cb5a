"""Owns how Triton kernels are launched here: dependent launches, and what the device offers.

Programmatic dependent launch (PDL): a kernel whose grid starts while its predecessor still runs.
Such a kernel takes a constexpr ``PDL`` and, where it is set, calls ``gdc_launch_dependents`` and
``gdc_wait``. Rules (each measured or found out the hard way):

- before the wait only constants of the step may be read (weights, rotary table, page table, old
  KV): kernels two or more back may still run;
- everything is written after the wait, and every kernel of a chain waits, else completion is not
  transitive;
- under the interpreter and before SM 90 there is no PDL: ``PDL`` is 0 and the kernels are plain.
"""

import functools
from collections.abc import Mapping
from typing import Any

import triton

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Kernels run as Python on the CPU (``TRITON_INTERPRET=1``); fixed when they are imported."""


@functools.cache
def has_dependent_launch() -> bool:
    """Whether kernels may be launched with PDL here."""
    return not IS_INTERPRETED and compute_capability() >= 90


PLAIN: Mapping[str, Any] = {"PDL": 0}
"""Arguments of a launch that waits for its predecessor's end."""


def dependent() -> Mapping[str, Any]:
    """Arguments of a dependent launch where there is such a thing, else of a plain one."""
    return {"PDL": 1, "launch_pdl": True} if has_dependent_launch() else PLAIN


@functools.cache
def num_multiprocessors() -> int:
    """Streaming multiprocessors of the current device; 4 under the interpreter."""
    if IS_INTERPRETED:
        return 4
    return _properties()["multiprocessor_count"]


@functools.cache
def has_tensor_copies() -> bool:
    """Whether the hardware copies what tensor descriptors describe; else they are slow."""
    return IS_INTERPRETED or compute_capability() >= 90


@functools.cache
def shared_memory() -> int:
    """Bytes of shared memory that one program may take on the current device."""
    if IS_INTERPRETED:
        return 232_448
    return _properties()["max_shared_mem"]


def compute_capability() -> int:
    """Compute capability of the current device, as in 90.

    Asked of Triton, not of torch: its driver may stand for a GPU that is not here.
    """
    return int(triton.runtime.driver.active.get_current_target().arch)


def _properties() -> Mapping[str, int]:
    active = triton.runtime.driver.active
    found: Mapping[str, int] = active.utils.get_device_properties(active.get_current_device())
    return found
