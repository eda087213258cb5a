"""A model's files as sources offer them, and the command run in this process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.benchmark_models import write_config

from mizzen_worker.config.env import read_fetch_environment
from mizzen_worker.fetch.command import run
from mizzen_worker.fetch.retry import RetryPolicy

IMPATIENT = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)


def model_files(tmp_path: Path, *, weight_bytes: int = 300_000) -> dict[str, bytes]:
    """A folder of safetensors with what lies beside them; the weights are noise."""
    folder = tmp_path / "made"
    folder.mkdir()
    write_config(folder, "qwen06b")
    rng = Random(7)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    files |= {name: rng.randbytes(weight_bytes) for name in names}
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["tokenizer.json"] = b'{"model": "' + b"t" * 3000 + b'"}'
    files["empty.txt"] = b""
    return files


def unwanted_files() -> dict[str, bytes]:
    """What sources have beside a model and nobody serves."""
    return {
        "README.md": b"# Tiny",
        "model.py": b"raise SystemExit",
        "pytorch_model.bin": b"p" * 5000,
        "tiny-Q4_0.gguf": b"g" * 5000,
        "consolidated.safetensors": b"c" * 5000,
    }


@dataclass
class Outcome:
    """What a run left behind."""

    status: int
    termination: dict[str, object] = field(default_factory=dict)

    @property
    def reason(self) -> object:
        return self.termination["reason"]

    @property
    def message(self) -> str:
        return str(self.termination["message"])


@dataclass
class Fetcher:
    """Runs the command with a folder and an environment."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    policy: RetryPolicy = IMPATIENT

    def run(self, *arguments: str) -> Outcome:
        file = self.folder.parent / "termination.json"
        file.unlink(missing_ok=True)
        words = ["--termination-file", str(file), *arguments]
        status = run(words, read_fetch_environment(self.environment), self.policy)
        assert file.stat().st_size < 4096
        return Outcome(status, json.loads(file.read_bytes()))

    def fetch(self, source: str, *arguments: str) -> Outcome:
        return self.run("--to", str(self.folder), *arguments, source)


def read_folder(folder: Path, names: Sequence[str] | None = None) -> dict[str, bytes]:
    """Files below a folder by path, without our own state."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    wanted = (name for name in found if not name.startswith(".mizzen"))
    return {name: found[name] for name in (wanted if names is None else names)}
