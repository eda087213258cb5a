"""Owns reading of weights from a Hugging Face folder's safetensors files; runs no code from it.

One ``model.safetensors`` or the files of ``model.safetensors.index.json``.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.fp8_matrix import (
    FP8,
    GROUP,
    Fp8Matrix,
    scale_of_blocks,
    scale_of_rows,
)
from mizzen_worker.model_executor.weights.fused_experts import FusedPlace, fused_place
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.model_executor.weights.weight_files import weight_files
from mizzen_worker.models.weight_source import WHOLE, Part, span

_UNUSED = (".rotary_emb.inv_freq", "lm_head.weight")
"""Tensors that may lie unread: a table that is computed, and the head of a tied model."""


_SCALES = (".weight_scale_inv", ".weight_scale")
"""What is behind a matrix's name in those of its scales; both are multiplied with."""
_UNUSED_SCALES = (".input_scale", ".k_scale", ".v_scale", ".q_scale")
"""Of activations and of keys and values, which are not rounded so."""
_VOCABULARIES = ("model.embed_tokens.weight", "lm_head.weight")
_ROUTER = ".gate"


def _cut_blocks(weights: torch.Tensor, scale: torch.Tensor, columns: range) -> torch.Tensor:
    """Columns of a matrix that begin or end inside a block, dense."""
    return weights.float() * scale.t().repeat_interleave(GROUP, 1)[:, span(columns)]


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

    def vector(self, name: str, length: int, part: range | None = None) -> torch.Tensor:
        """See ``PartialWeightSource``."""
        return self._read(name, (length,), (part,)).float()

    def matrix(
        self, name: str, rows: int, columns: int, part: Part = WHOLE
    ) -> torch.Tensor | Fp8Matrix:
        """See ``PartialWeightSource``; an expert's may lie in one tensor with all others."""
        place = None if name in self._file_by_name else fused_place(name)
        if place is not None and place.name in self._file_by_name:
            if place.expert is not None:
                return self._read_expert(place, place.expert, (rows, columns), part)
            return self._read(place.name, (rows, columns), (part.rows, part.columns))
        weights = self._read(name, (rows, columns), (part.rows, part.columns))
        return (
            weights if weights.dtype != FP8 else self._scaled(name, (rows, columns), part, weights)
        )

    def _scaled(
        self, name: str, whole: tuple[int, int], part: Part, weights: torch.Tensor
    ) -> torch.Tensor | Fp8Matrix:
        """A part with its scale; dense where nobody multiplies FP8."""
        stem = name.removesuffix(".weight")
        scale = self._scale(stem, *whole)[:, span(part.rows)]
        columns = part.columns or range(whole[1])
        if len(scale) > 1:
            if whole[1] % GROUP or columns.start % GROUP or columns.stop % GROUP:
                return _cut_blocks(weights, scale, columns)
            scale = scale[columns.start // GROUP : columns.stop // GROUP]
        matrix = Fp8Matrix(values=weights, scale=scale.contiguous())
        is_dense = name in _VOCABULARIES or stem.endswith(_ROUTER)
        return matrix.dequantise(torch.float32) if is_dense else matrix

    def _scale(self, stem: str, rows: int, columns: int) -> torch.Tensor:
        """Of the whole matrix, as of ``Fp8Matrix``; but that the last group may be cut."""
        for ending in _SCALES:
            stored = self._file_by_name.get(stem + ending)
            if stored is None:
                continue
            self._taken.add(stem + ending)
            factors: torch.Tensor = self._opened[stored].get_tensor(stem + ending)
            scale = scale_of_blocks(factors, rows, columns)
            if scale is None:
                scale = scale_of_rows(factors, rows)
            if scale is None:
                message = (
                    f"{stored}: {stem}{ending} of shape {tuple(factors.shape)} scales no rows or "
                    f"blocks of {GROUP} of a matrix {(rows, columns)}; download the model again"
                )
                raise ModelLoadError(message)
            return scale
        message = (
            f"{self._folder}: tensor {stem}.weight is FP8 and has no {' or '.join(_SCALES)}; "
            "download the model again"
        )
        raise ModelLoadError(message)

    def _read_expert(
        self, place: FusedPlace, expert: int, whole: tuple[int, int], part: Part
    ) -> torch.Tensor:
        rows, columns = whole
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
        asked = part.rows or range(rows)
        weights: torch.Tensor = stored[
            expert, first + asked.start : first + asked.stop, span(part.columns)
        ]
        self._require_floating(path, place.name, weights)
        if weights.dtype == FP8:
            message = f"{path}: tensor {place.name} holds all experts as FP8; use unquantised ones"
            raise ModelLoadError(message)
        self._progress.add(weights.nbytes)
        return weights

    def _read(
        self, name: str, expected: tuple[int, ...], part: tuple[range | None, ...]
    ) -> torch.Tensor:
        """A tensor of this shape, or the ``part`` of each of its sides."""
        path = self._file_by_name.get(name)
        if path is None:
            message = (
                f"{self._folder}: tensor {name} is in none of its safetensors files; "
                "the download is incomplete or the architecture differs from config.json"
            )
            raise ModelLoadError(message)
        self._taken.add(name)
        stored = self._opened[path].get_slice(name)
        shape = tuple(stored.get_shape())
        if shape != expected:
            message = f"{path}: tensor {name} has shape {shape}, config.json asks for {expected}"
            raise ModelLoadError(message)
        weights: torch.Tensor = (
            self._opened[path].get_tensor(name)
            if all(side is None for side in part)
            else stored[tuple(map(span, part))]
        )
        self._require_floating(path, name, weights)
        self._progress.add(weights.nbytes)
        return weights

    def _require_floating(self, path: Path, name: str, weights: torch.Tensor) -> None:
        if not weights.dtype.is_floating_point:
            message = f"{path}: tensor {name} has type {weights.dtype}; use unquantised weights"
            raise ModelLoadError(message)

    def require_all_taken(self) -> None:
        """Raise ``ModelLoadError`` for a tensor that the model did not ask for."""
        for name, path in self._file_by_name.items():
            if name not in self._taken and not name.endswith(_UNUSED + _UNUSED_SCALES):
                message = (
                    f"{path}: tensor {name} has no place in the architecture that config.json "
                    "names; check its architectures and flags, or download the model again"
                )
                raise ModelLoadError(message)
