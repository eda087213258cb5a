"""Owns finding out what a model path holds; reads weights only through the sources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.memory.device_pool import KvScale
from mizzen_worker.model_executor.weights.dummy_source import DummySource
from mizzen_worker.model_executor.weights.fp8_kv import read_kv_scales
from mizzen_worker.model_executor.weights.gguf_facts import read_gguf_facts
from mizzen_worker.model_executor.weights.gguf_file import GgufFile
from mizzen_worker.model_executor.weights.gguf_source import GgufWeightSource
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts
from mizzen_worker.model_executor.weights.progress import ByteProgress, ProgressCallback
from mizzen_worker.model_executor.weights.safetensors_source import SafetensorsSource
from mizzen_worker.model_executor.weights.weight_files import weight_files
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.parameter_count import parameter_count
from mizzen_worker.models.weight_source import PartialWeightSource
from mizzen_worker.vocabulary.model_path import find_gguf

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWeights:
    """Weights to take, and what to call when the model has taken its own.

    ``finish`` raises ``ModelLoadError`` naming a tensor that is left over, and ends the progress.
    """

    source: PartialWeightSource
    finish: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on disk that was recognised; its weights are not read yet."""

    facts: ModelFacts
    open_weights: Callable[[ProgressCallback], OpenWeights]
    read_kv_scales: Callable[[], Sequence[KvScale]] = tuple
    """Scales of FP8 keys and values by layer; none where the model brings none."""


def _finish(source: GgufWeightSource | SafetensorsSource, progress: ByteProgress) -> None:
    source.require_all_taken()
    progress.finish()


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    facts = read_gguf_facts(file)

    def open_weights(callback: ProgressCallback) -> OpenWeights:
        progress = ByteProgress(file.tensor_bytes, callback)
        source = GgufWeightSource(file, facts.shape, progress)
        return OpenWeights(source=source, finish=lambda: _finish(source, progress))

    return Checkpoint(facts=facts, open_weights=open_weights)


def _open_folder(folder: Path) -> Checkpoint:
    def open_weights(callback: ProgressCallback) -> OpenWeights:
        progress = ByteProgress(sum(path.stat().st_size for path in weight_files(folder)), callback)
        source = SafetensorsSource(folder, progress)
        return OpenWeights(source=source, finish=lambda: _finish(source, progress))

    facts = read_folder_facts(folder, has_weights=True)
    return Checkpoint(
        facts=facts,
        open_weights=open_weights,
        read_kv_scales=lambda: read_kv_scales(folder, facts.shape.num_layers),
    )


def _open_dummy(folder: Path, device: torch.device) -> Checkpoint:
    # What is made up is dense, whatever the config says of stored weights.
    facts = replace(read_folder_facts(folder, has_weights=False), fp8_scales=None)

    def open_weights(callback: ProgressCallback) -> OpenWeights:
        progress = ByteProgress(4 * parameter_count(facts), callback)
        return OpenWeights(source=DummySource(progress, device), finish=progress.finish)

    return Checkpoint(facts=facts, open_weights=open_weights)


def open_checkpoint(
    path: Path, *, is_dummy: bool = False, dummy_device: torch.device = _CPU
) -> Checkpoint:
    """Recognise a GGUF file, a folder with one, or a Hugging Face folder.

    A folder with ``config.json`` counts as the latter. ``dummy_device`` makes up weights where they
    are ``is_dummy``. Raises ``ModelLoadError``.
    """
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if not path.is_dir():
        message = f"{path}: no such model; give a .gguf file or a folder with config.json"
        raise ModelLoadError(message)
    if (path / "config.json").exists():
        return _open_dummy(path, dummy_device) if is_dummy else _open_folder(path)
    gguf_path = None if is_dummy else find_gguf(path)
    if gguf_path is None:
        needed = "config.json" if is_dummy else "config.json or a .gguf file"
        message = f"{path}: holds no {needed}; download the model again"
        raise ModelLoadError(message)
    return _open_gguf(gguf_path)
