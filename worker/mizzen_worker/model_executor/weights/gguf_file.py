"""Owns one mapped GGUF file: the raw tensors behind its header; knows no architecture.

The file is mapped, not read; block formats are decoded by ``gguf_blocks``.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME
from mizzen_worker.model_executor.weights.gguf_table import GgufTable
from mizzen_worker.vocabulary.gguf_metadata import GgufTensor

_DTYPE_BY_NAME = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoding:
    """How the values of one GGUF type lie in the file: ``columns`` of them in ``size_bytes``."""

    name: str
    columns: int
    size_bytes: int


_DENSE = (
    _Encoding(name="F32", columns=1, size_bytes=4),
    _Encoding(name="F16", columns=1, size_bytes=2),
    _Encoding(name="BF16", columns=1, size_bytes=2),
)
_ENCODING_BY_NAME = {encoding.name: encoding for encoding in _DENSE} | {
    block.name: _Encoding(name=block.name, columns=block.columns, size_bytes=block.size_bytes)
    for block in FORMAT_BY_NAME.values()
}
_NAME_BY_TYPE_NUMBER = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}


class GgufFile(GgufTable):
    """One mapped GGUF file: its header, and its tensors' bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors of known types."""
        known = (t for t in self.tensors() if t.type_number in _NAME_BY_TYPE_NUMBER)
        return sum(self._size_bytes(tensor) for tensor in known)

    def read(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """Type name and raw bytes (a view of the file) of a tensor; raises ``ModelLoadError``."""
        tensor = self.tensor(name)
        size_bytes = self._size_bytes(tensor)
        if tensor.offset + size_bytes > len(self._bytes):
            message = f"{self.path}: the file ends inside tensor {name}; download it again"
            raise ModelLoadError(message)
        raw = self._bytes[tensor.offset : tensor.offset + size_bytes]
        return _NAME_BY_TYPE_NUMBER[tensor.type_number], raw

    def _size_bytes(self, tensor: GgufTensor) -> int:
        type_name = _NAME_BY_TYPE_NUMBER.get(tensor.type_number)
        if type_name is None:
            known = ", ".join(_NAME_BY_TYPE_NUMBER.values())
            message = (
                f"{self.path}: tensor {tensor.name} has GGUF type number {tensor.type_number}, "
                f"which is not supported here; convert it to one of: {known}"
            )
            raise ModelLoadError(message)
        encoding = _ENCODING_BY_NAME[type_name]
        if not tensor.sizes or tensor.sizes[0] % encoding.columns:
            message = (
                f"{self.path}: tensor {tensor.name} of sizes {tensor.sizes} is not whole blocks "
                f"of {encoding.columns} ({type_name}); convert the file again"
            )
            raise ModelLoadError(message)
        return math.prod(tensor.sizes) // encoding.columns * encoding.size_bytes

    def vector(self, name: str) -> torch.Tensor:
        """A dense tensor in its stored type, flat; a copy."""
        _, raw = self.read(name)
        return self.dense(name, raw)

    def dense(self, name: str, raw: npt.NDArray[np.uint8]) -> torch.Tensor:
        """The values that bytes of a dense tensor mean, [..., values]; a copy."""
        type_name, _ = self.read(name)
        if type_name not in _DTYPE_BY_NAME:
            message = f"{self.path}: tensor {name} has type {type_name}; F32, F16 or BF16 is needed"
            raise ModelLoadError(message)
        return torch.from_numpy(raw.copy()).view(_DTYPE_BY_NAME[type_name])
