"""Owns reading of a Hugging Face folder: ``config.json`` to ``ModelFacts``, safetensors to weights.

One ``model.safetensors`` or the files of ``model.safetensors.index.json``. Runs no code from the
folder.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.layers.rotary import Llama3Scaling, RotaryConfig
from mizzen_worker.model_executor.weights.fingerprint import content_fingerprint
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.model_facts import MAX_LAYERS, MAX_SIZE, ModelFacts, ModelShape
from mizzen_worker.vocabulary.json_file import read_json_object

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class HfConfig:
    """Typed access to one ``config.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values = read_json_object(path)

    def value(self, key: str) -> object | None:
        """The value, None when absent or null."""
        return self._values.get(key)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        """An integer in a range that must be there unless there is a default."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or not least <= found <= most:
            message = (
                f"{self.path}: {key} is {found!r}, an integer from {least} to {most} is "
                "needed; download or convert the model again"
            )
            raise ModelLoadError(message)
        return found

    def number(self, key: str, default: float) -> float:
        """A number, or the default when absent."""
        found = self._values.get(key)
        return float(found) if isinstance(found, int | float) else default


def _rope_parameters(config: HfConfig) -> dict[str, object]:
    """Rotary settings in the older (``rope_scaling``) or newer (``rope_parameters``) place."""
    merged: dict[str, object] = {"rope_theta": config.number("rope_theta", 10000.0)}
    for key in ("rope_scaling", "rope_parameters"):
        found = config.value(key)
        if isinstance(found, dict):
            merged.update(found)
    return merged


def _rotary_config(config: HfConfig, head_dim: int) -> RotaryConfig:
    parameters = _rope_parameters(config)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = float(str(parameters["rope_theta"]))
    if kind == "default":
        return RotaryConfig(head_dim=head_dim, theta=theta)
    if kind == "linear":
        factor = float(str(parameters["factor"]))
        return RotaryConfig(head_dim=head_dim, theta=theta, linear_factor=factor)
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=float(str(parameters["factor"])),
            low_freq_factor=float(str(parameters["low_freq_factor"])),
            high_freq_factor=float(str(parameters["high_freq_factor"])),
            original_context_length=int(str(parameters["original_max_position_embeddings"])),
        )
        return RotaryConfig(head_dim=head_dim, theta=theta, llama3=scaling)
    message = f"{config.path}: rope type {kind!r} is not supported; known: default, linear, llama3"
    raise ModelLoadError(message)


def _token_ids(found: object) -> tuple[TokenId, ...]:
    items = found if isinstance(found, list) else [found]
    return tuple(TokenId(item) for item in items if isinstance(item, int))


def _eos_token_ids(folder: Path, config: HfConfig) -> tuple[TokenId, ...]:
    """Of ``generation_config.json`` (which chat models extend) before ``config.json``."""
    generation_path = folder / "generation_config.json"
    if generation_path.exists():
        found = _token_ids(read_json_object(generation_path).get("eos_token_id"))
        if found:
            return found
    return _token_ids(config.value("eos_token_id"))


def _require_plain_llama(config: HfConfig) -> None:
    for key, allowed in (
        ("attention_bias", (None, False)),
        ("mlp_bias", (None, False)),
        ("hidden_act", (None, "silu")),
        ("quantization_config", (None,)),
    ):
        found = config.value(key)
        if found not in allowed:
            message = (
                f"{config.path}: {key} {found!r} is not supported for this architecture; "
                "use a model without it, or its GGUF form"
            )
            raise ModelLoadError(message)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, sorted; raises ``ModelLoadError`` when there are none."""
    index_path = folder / INDEX_FILE
    if index_path.exists():
        weight_map = read_json_object(index_path).get("weight_map")
        if not isinstance(weight_map, dict):
            message = f"{index_path}: weight_map is missing; download the model again"
            raise ModelLoadError(message)
        names = sorted({str(name) for name in weight_map.values()})
        if any(Path(name).name != name for name in names):
            message = f"{index_path}: weight_map points outside the folder; do not use this model"
            raise ModelLoadError(message)
        files = [folder / name for name in names]
    else:
        files = [folder / SINGLE_FILE]
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        message = f"{', '.join(missing)}: missing; download the model again"
        raise ModelLoadError(message)
    return files


def read_folder_facts(folder: Path, *, has_weights: bool) -> ModelFacts:
    """Everything known of the model; ``has_weights`` False is for dummy weights."""
    config = HfConfig(folder / "config.json")
    architectures = config.value("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) else "unknown"
    _require_plain_llama(config)
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    head_dim = config.integer("head_dim", hidden_size // num_heads)
    bos = config.value("bos_token_id")
    return ModelFacts(
        architecture=architecture,
        shape=ModelShape(
            num_layers=config.integer("num_hidden_layers", most=MAX_LAYERS),
            hidden_size=hidden_size,
            intermediate_size=config.integer("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=config.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            vocab_size=config.integer("vocab_size"),
        ),
        rotary=_rotary_config(config, head_dim),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        context_length=config.integer("max_position_embeddings"),
        tie_embeddings=config.value("tie_word_embeddings") is True,
        eos_token_ids=_eos_token_ids(folder, config),
        bos_token_id=TokenId(bos) if isinstance(bos, int) else None,
        weight_format="safetensors" if has_weights else "dummy",
        fingerprint=content_fingerprint(
            [folder / "config.json", *(weight_files(folder) if has_weights else [])]
        ),
    )


class SafetensorsSource:
    """Weights of a folder's safetensors files; each tensor is read when asked for."""

    def __init__(self, folder: Path, progress: ByteProgress) -> None:
        self._progress = progress
        self._folder = folder
        self._file_by_name: dict[str, Path] = {}
        for path in weight_files(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    self._file_by_name.update(dict.fromkeys(file.keys(), path))
            except (SafetensorError, OSError) as error:
                message = f"{path}: not a readable safetensors file ({error}); download it again"
                raise ModelLoadError(message) from error

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``."""
        return self._read(name, (length,)).float()

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See ``WeightSource``."""
        return self._read(name, (rows, columns))

    def _read(self, name: str, expected: tuple[int, ...]) -> torch.Tensor:
        path = self._file_by_name.get(name)
        if path is None:
            message = (
                f"{self._folder}: tensor {name} is in none of its safetensors files; "
                "the download is incomplete or the architecture differs from config.json"
            )
            raise ModelLoadError(message)
        with safe_open(path, framework="pt") as file:
            weights: torch.Tensor = file.get_tensor(name)
        if not weights.dtype.is_floating_point:
            message = f"{path}: tensor {name} has type {weights.dtype}; use unquantised weights"
            raise ModelLoadError(message)
        if tuple(weights.shape) != expected:
            message = (
                f"{path}: tensor {name} has shape {tuple(weights.shape)}, "
                f"config.json asks for {expected}"
            )
            raise ModelLoadError(message)
        self._progress.add(weights.nbytes)
        return weights
