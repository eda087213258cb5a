"""Owns the scales of FP8 keys and values that a Hugging Face folder may hold; reads no weights."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.memory.device_pool import KvScale
from mizzen_worker.model_executor.weights.weight_files import weight_files


def read_kv_scales(folder: Path, num_layers: int) -> tuple[KvScale, ...]:
    """By layer; none where the files hold none. Raises ``ModelLoadError``."""
    found: dict[str, float] = {}
    for path in weight_files(folder):
        try:
            file: Any = safe_open(path, framework="pt")
            names = [name for name in file.keys() if name.endswith((".k_scale", ".v_scale"))]  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            message = f"{path}: not a readable safetensors file ({error}); download it again"
            raise ModelLoadError(message) from error
        for name, tensor in tensors.items():
            if tensor.numel() != 1 or not float(tensor) > 0:
                message = f"{path}: {name} is not one number above 0; download the model again"
                raise ModelLoadError(message)
            found[name] = float(tensor)
    if not found:
        return ()
    return tuple(
        KvScale(
            key=found.get(f"model.layers.{layer}.self_attn.k_scale", 1.0),
            value=found.get(f"model.layers.{layer}.self_attn.v_scale", 1.0),
        )
        for layer in range(num_layers)
    )
