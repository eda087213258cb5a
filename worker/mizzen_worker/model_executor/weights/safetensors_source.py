"""Owns reading of weights from a Hugging Face folder's safetensors files; runs no code from it.

One ``model.safetensors`` or the files of ``model.safetensors.index.json``.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.fused_experts import FusedPlace, fused_place
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.model_executor.weights.weight_files import weight_files

_UNUSED = (".rotary_emb.inv_freq", "lm_head.weight")
"""Tensors that may lie unread: a table that is computed, and the head of a tied model."""


class SafetensorsSource:
    """Weights of a folder's safetensors files; each tensor is read when asked for.

    Files stay open: each has a header with the names of its tensors, which are many in a mixture of
    experts, and reading it again for each of them takes longer than the weights.
    """

    def __init__(self, folder: Path, progress: ByteProgress) -> None:
        self._progress = progress
        self._folder = folder
        self._taken: set[str] = set()
        self._file_by_name: dict[str, Path] = {}
        self._opened: dict[Path, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="pt")
                self._opened[path] = file
                self._file_by_name.update(dict.fromkeys(file.keys(), path))
            except (SafetensorError, OSError) as error:
                message = f"{path}: not a readable safetensors file ({error}); download it again"
                raise ModelLoadError(message) from error

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``."""
        return self._read(name, (length,)).float()

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See ``WeightSource``; a matrix of an expert may lie in one tensor with all others."""
        place = None if name in self._file_by_name else fused_place(name)
        if place is None or place.name not in self._file_by_name:
            return self._read(name, (rows, columns))
        if place.expert is None:
            return self._read(place.name, (rows, columns))
        return self._read_expert(place, place.expert, rows, columns)

    def _read_expert(self, place: FusedPlace, expert: int, rows: int, columns: int) -> torch.Tensor:
        path = self._file_by_name[place.name]
        self._taken.add(place.name)
        first, all_rows = (0, rows) if place.part is None else (place.part * rows, 2 * rows)
        stored = self._opened[path].get_slice(place.name)
        shape = tuple(stored.get_shape())
        if len(shape) != 3 or shape[1:] != (all_rows, columns) or expert >= shape[0]:
            message = (
                f"{path}: tensor {place.name} has shape {shape}, config.json asks for more "
                f"than {expert} experts of {(all_rows, columns)}"
            )
            raise ModelLoadError(message)
        weights: torch.Tensor = stored[expert, first : first + rows]
        self._require_floating(path, place.name, weights)
        self._progress.add(weights.nbytes)
        return weights

    def _read(self, name: str, expected: tuple[int, ...]) -> torch.Tensor:
        path = self._file_by_name.get(name)
        if path is None:
            message = (
                f"{self._folder}: tensor {name} is in none of its safetensors files; "
                "the download is incomplete or the architecture differs from config.json"
            )
            raise ModelLoadError(message)
        self._taken.add(name)
        weights: torch.Tensor = self._opened[path].get_tensor(name)
        self._require_floating(path, name, weights)
        if tuple(weights.shape) != expected:
            message = (
                f"{path}: tensor {name} has shape {tuple(weights.shape)}, "
                f"config.json asks for {expected}"
            )
            raise ModelLoadError(message)
        self._progress.add(weights.nbytes)
        return weights

    def _require_floating(self, path: Path, name: str, weights: torch.Tensor) -> None:
        if not weights.dtype.is_floating_point:
            message = f"{path}: tensor {name} has type {weights.dtype}; use unquantised weights"
            raise ModelLoadError(message)

    def require_all_taken(self) -> None:
        """Raise ``ModelLoadError`` for a tensor that the model did not ask for."""
        for name, path in self._file_by_name.items():
            if name not in self._taken and not name.endswith(_UNUSED):
                message = (
                    f"{path}: tensor {name} has no place in the architecture that config.json "
                    "names; check its architectures and flags, or download the model again"
                )
                raise ModelLoadError(message)
