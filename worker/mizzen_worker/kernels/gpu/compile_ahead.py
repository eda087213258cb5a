"""Owns compiling kernels in several processes at once before they are needed.

A kernel takes a second or more of one core, a model about a hundred of them: on its first start a
rank would compile them one after the other. Instead, its work runs once without launching anything
(``recorded_kernels``), which tells the kernels with everything they are specialised for, and
processes (``compile_worker.py``) fill Triton's cache with them, from the first one that is told;
the real launches only find them there. Owns no list of kernels, and not the folder. Whatever fails
here is compiled at its launch.
"""

import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import triton
from triton.runtime.jit import KernelInterface

logger = logging.getLogger(__name__)


class KernelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel and what it is specialised for; ``data`` is Triton's own description of it."""

    module: str
    name: str
    data: str


_NOTED = object()
"""Stands where a compiled kernel would: nothing launches it."""


def _look_up(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """What ``kernel[grid]`` gives in place of a launch."""
    return lambda *arguments, **options: kernel.run(*arguments, grid=grid, warmup=True, **options)


def _ignore(request: KernelRequest) -> None:
    del request


@contextmanager
def recorded_kernels(
    on_kernel: Callable[[KernelRequest], None] = _ignore,
) -> Iterator[list[KernelRequest]]:
    """Note every kernel that is not compiled in this process yet, and launch none of them.

    Nor those that are compiled, of a model that was loaded before: the tensors hold nothing.
    ``on_kernel`` is told each one when it is noted.
    """
    requests: list[KernelRequest] = []
    stand_ins: list[tuple[dict[object, object], object]] = []

    def note(*, key: object, fn: Any, compile: Mapping[str, Any], **_: object) -> bool:  # noqa: A002 - Triton's name
        data = compile["specialization_data"]
        requests.append(KernelRequest(module=fn.module, name=fn.name, data=data))
        on_kernel(requests[-1])
        cache = fn.jit_function.device_caches[compile["device"]][0]
        cache[key] = _NOTED
        stand_ins.append((cache, key))
        return True

    before = triton.knobs.runtime.jit_cache_hook, KernelInterface.__getitem__
    triton.knobs.runtime.jit_cache_hook = note
    KernelInterface.__getitem__ = _look_up
    try:
        yield requests
    finally:
        triton.knobs.runtime.jit_cache_hook, KernelInterface.__getitem__ = before
        for cache, key in stand_ins:
            del cache[key]


class CompileProcesses:
    """Compiles what is added, until it is finished; the processes begin with the first kernel."""

    def __init__(
        self, *, capability: int, num_processes: int, environment: Mapping[str, str]
    ) -> None:
        """Into the cache that ``environment`` names; ``capability`` as in 90."""
        self._command = [
            *(sys.executable, "-m", "mizzen_worker.kernels.gpu.compile_worker"),
            str(capability),
        ]
        self._num_processes = num_processes
        self._environment = dict(environment)
        self._waiting: queue.SimpleQueue[KernelRequest | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._num_started = self._num_added = 0

    def add(self, request: KernelRequest) -> None:
        """Have a kernel compiled."""
        self._num_added += 1
        self._waiting.put(request)
        while self._num_started < self._num_processes:
            self._start()

    def _start(self) -> None:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
        )
        self._num_started += 1
        feed = (process, self._waiting, self._outcomes)
        threading.Thread(target=_feed, args=feed, daemon=True).start()

    def finish(self, progress: Callable[[int, int], None]) -> int:
        """Wait for all, and for the processes; give how many were compiled.

        ``progress`` is called from this thread.
        """
        for _ in range(self._num_started):
            self._waiting.put(None)
        progress(0, self._num_added)
        num_told = num_compiled = num_ended = 0
        while num_ended < self._num_started:
            outcome = self._outcomes.get()
            if outcome is None:
                num_ended += 1
                continue
            num_told += 1
            num_compiled += outcome
            progress(num_told, self._num_added)
        return num_compiled


def _feed(
    process: "subprocess.Popen[str]",
    waiting: "queue.SimpleQueue[KernelRequest | None]",
    outcomes: "queue.SimpleQueue[bool | None]",
) -> None:
    """Give one process kernel after kernel; puts whether each was compiled, then None."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while (request := waiting.get()) is not None:
            process.stdin.write(msgspec.json.encode(request).decode() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                logger.warning("a compiling process ended", extra={"status": process.wait()})
                return
            outcomes.put(answer == "compiled\n")
    except BrokenPipeError:
        logger.warning("a compiling process ended", extra={"status": process.wait()})
    finally:
        outcomes.put(None)
        process.stdin.close()
        process.stdout.close()
        process.wait()
