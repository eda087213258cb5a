"""Owns a ``mizzen serve`` of its own for the time of a benchmark; sends it no request."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from mizzen_worker.bench.engine import BenchFailedError
from mizzen_worker.contracts.operator_names import PATH_READY

_START_LIMIT_S = 600.0
_STOP_LIMIT_S = 30.0
_POLL_S = 0.2
_LOG_CHARACTERS = 4000


@contextmanager
def serve(flags: Sequence[str]) -> Iterator[str]:
    """Start a server on free ports of 127.0.0.1 and wait until it is ready; gives its URL.

    Raises ``BenchFailedError`` with the end of its log where it dies or takes ten minutes.
    """
    http_port, admin_port = _free_ports(2)
    command = [sys.executable, "-m", "mizzen_worker.bench.tied_server", str(os.getpid()), *flags]
    command += ["--http-port", str(http_port), "--admin-port", str(admin_port)]
    with tempfile.TemporaryDirectory(prefix="mizzen-bench-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            # In a session of its own: Ctrl-C is for this process, which ends the server.
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            _wait_ready(process, f"http://127.0.0.1:{admin_port}{PATH_READY}", log)
            yield f"http://127.0.0.1:{http_port}"
        finally:
            _stop(process)


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    started = time.monotonic()
    while True:
        if process.poll() is not None or time.monotonic() - started > _START_LIMIT_S:
            message = f"the server did not become ready; its log ends:\n{_end_of(log)}"
            raise BenchFailedError(message)
        try:
            if httpx.get(url, trust_env=False, timeout=5).is_success:
                break
        except httpx.TransportError:
            pass  # It does not listen yet.
        time.sleep(_POLL_S)
    sys.stderr.write(f"server ready after {time.monotonic() - started:.1f} s\n")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARACTERS:]
