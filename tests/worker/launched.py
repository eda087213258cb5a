"""A verb of the command run as users run it: own processes, real sockets, a tiny real model."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx
import zmq
from tests.worker.byte_vocabulary import VOCAB_SIZE, write_model_folder
from tests.worker.model_executor.tiny_llama import save_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 180.0


def write_tiny_model(folder: Path) -> Path:
    """Write random Llama weights of a few layers with the byte vocabulary."""
    write_model_folder(folder)
    save_tiny_llama(
        folder,
        vocab_size=VOCAB_SIZE,
        eos_token_id=256,
        bos_token_id=None,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Launched:
    """One ``mizzen VERB`` process with its children."""

    def __init__(
        self,
        *arguments: str,
        log: Path,
        admin_port: int,
        path: Path | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """``path`` is searched for modules first; ``variables`` are added to the environment."""
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.log = log
        first = "" if path is None else f"{path}:"
        folders = f"{first}{ROOT / 'operator'}:{ROOT / 'worker'}"
        environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
        environment |= variables or {}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mizzen_worker", *arguments),
                    *("--admin-port", str(admin_port)),
                ],
                stdout=out,
                stderr=out,
                env=environment,
            )

    def __enter__(self) -> "Launched":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log.read_text()[-8000:])
        self.process.kill()
        self.process.wait()

    def children(self) -> dict[str, int]:
        """Give the process ids of the children by module; of one each where there are several."""
        return {module: pid for pid, module in self._modules()}

    def pid_of(self, part: str) -> int:
        return self.pids_of(part)[0]

    def pids_of(self, part: str) -> list[int]:
        return sorted(pid for pid, module in self._modules() if part in module)

    def _modules(self) -> list[tuple[int, str]]:
        found = []
        for pid in _child_pids(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"-m" in words:
                found.append((pid, words[words.index(b"-m") + 1].decode()))
        return found

    def until_ready(self, path: str = "/health/ready") -> None:
        self.until(lambda: self.probe(path) == 200)

    def probe(self, path: str) -> int:
        try:
            return httpx.get(self.admin + path, timeout=5).status_code
        except httpx.HTTPError:
            return 0

    def until(self, condition: object, limit_s: float = START_LIMIT_S) -> None:
        ends_at = time.monotonic() + limit_s
        while not condition():  # type: ignore[operator]
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < ends_at, self.log.read_text()[-4000:]
            time.sleep(0.05)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def write_keys(folder: Path) -> Path:
    """Write the CURVE key files of one service."""
    folder.mkdir()
    for role in ("server", "client"):
        public, secret = zmq.curve_keypair()
        (folder / f"{role}.pub").write_bytes(public)
        (folder / f"{role}.key").write_bytes(secret)
    return folder


def _child_pids(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found.extend(int(word) for word in (task / "children").read_text().split())
    return found


@contextmanager
def streaming(url: str, body: dict[str, object]) -> Iterator[Iterator[dict[str, object]]]:
    """Give the events of a native stream as they arrive."""
    with httpx.stream("POST", f"{url}/generate", json={**body, "stream": True}, timeout=120) as got:
        assert got.status_code == 200

        def events() -> Iterator[dict[str, object]]:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

        yield events()
