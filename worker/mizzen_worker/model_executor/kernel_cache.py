"""Owns the folder of compiled kernels: filling it for a model once, before anything is launched.

What is compiled is told by running the model's steps without values (``valueless.py``). A file in
the folder says that this was done for a model, its limits and this code: then a start finds every
kernel there, and does nothing here. Ranks that share the folder wait for the one that fills it.
"""

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import triton

from mizzen_worker.contracts.errors import ConfigError, WorkerError
from mizzen_worker.kernels.gpu.cache_keys import settle_keys
from mizzen_worker.kernels.gpu.compile_ahead import CompileProcesses, recorded_kernels

logger = logging.getLogger(__name__)

_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    WorkerError,
    triton.TritonError,
)
"""What running a model without values may end with, where something asks for one."""
_MAX_PROCESSES = 32
_TRIED_BYTES = 1 << 20
_PACKAGE = Path(__file__).resolve().parents[1]
_CODE = ("kernels/gpu", "layers/gpu", "attention", "sampler", "models", "model_executor")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFolder:
    """Where Triton keeps what it compiled; ``environment`` is that of this process."""

    path: Path
    environment: Mapping[str, str]

    def use(self) -> None:
        """Let Triton of this process keep its kernels there; raises ``ConfigError``.

        Triton launches no new kernel where it cannot write, so that is told before weights are
        read. A folder that was filled before may be read-only.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(bytes(_TRIED_BYTES))
        except OSError as error:
            if not any(self.path.glob("*.filled")):
                message = (
                    f"--compile-cache: {self.path} cannot be written ({error.strerror}); "
                    "give a folder that can, with a few hundred MB of room"
                )
                raise ConfigError(message) from error
        triton.knobs.cache.dir = str(self.path)
        settle_keys()

    def fill(
        self,
        run: Callable[[], None],
        *,
        facts: str,
        capability: int,
        progress: Callable[[int, int], None],
    ) -> None:
        """Compile every kernel that ``run`` would launch, unless that was done for these facts.

        ``run`` must not use what kernels compute. Its failure, or that of the folder, is logged: a
        kernel that is not there is compiled when it is launched.
        """
        started = time.monotonic()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                done = self.path / f"{_digest(facts, capability)}.filled"
                if done.exists():
                    return
                processes = self._processes(capability)
                try:
                    with recorded_kernels(processes.add) as requests:
                        run()
                finally:
                    # What was noted before a failure is needed too.
                    num_compiled = processes.finish(progress)
                if num_compiled == len(requests):
                    done.touch()
        except _FAILURES as error:
            reason = f"{type(error).__name__}: {error}"
            logger.warning("kernels are compiled one after the other", extra={"reason": reason})
            return
        logger.info(
            "kernels compiled",
            extra={
                "kernels": num_compiled,
                "failed": len(requests) - num_compiled,
                "seconds": round(time.monotonic() - started, 1),
            },
        )

    def _processes(self, capability: int) -> CompileProcesses:
        return CompileProcesses(
            capability=capability,
            num_processes=min(len(os.sched_getaffinity(0)), _MAX_PROCESSES),
            environment={
                **self.environment,
                "TRITON_CACHE_DIR": str(self.path),
                "OMP_NUM_THREADS": "1",
            },
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "filling.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _digest(facts: str, capability: int) -> str:
    """Name these facts and the code that launches kernels."""
    digest = hashlib.sha256(f"{facts} {capability} {triton.__version__}".encode())
    for folder in _CODE:
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:24]
