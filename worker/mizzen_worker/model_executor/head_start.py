"""Owns what of a start on a GPU needs no torch, and is done by threads while torch is imported.

That import takes seconds of one core. Meanwhile the driver makes this process's context, and
Triton's library is hashed, with which each name in its cache begins: neither runs Python. Owns no
outcome: what fails or lasts here is done again, or told, where it is needed.
"""

import ctypes
import threading
from functools import partial


def begin_beside_imports(device: str) -> tuple[threading.Thread, ...]:
    """Start the threads; nobody need wait for them.

    ``device`` as of ``--device``: nothing is done for another than a GPU.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        return ()
    works = (partial(_make_context, int(index or 0)), _hash_triton)
    threads = tuple(threading.Thread(target=work, daemon=True) for work in works)
    for thread in threads:
        thread.start()
    return threads


def _make_context(index: int) -> None:
    """The primary context, which torch uses too; it stays until the process ends."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _hash_triton() -> None:
    """Triton keeps the hash for this process; its library has hundreds of megabytes."""
    try:
        from triton.runtime.cache import triton_key  # noqa: PLC0415 - in this thread
    except ImportError:
        return
    triton_key()
