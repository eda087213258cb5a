"""Owns a GGUF file's header as readers of facts want it: typed metadata, tensors by name.

No tensor data and no torch, so that a model's sizes are read where no engine is installed.
"""

from pathlib import Path

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.model_executor.weights.typed_values import TypedValues
from mizzen_worker.vocabulary.gguf_metadata import GgufTensor, read_gguf_header


class GgufTable:
    """Everything of a GGUF file but its tensors' values; raises ``ModelLoadError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf_header(path)
        self.metadata = TypedValues(f"{path}: metadata ", header.metadata)
        self._tensor_by_name = {tensor.name: tensor for tensor in header.tensors}

    def tensors(self) -> tuple[GgufTensor, ...]:
        """All entries, in the order of the file."""
        return tuple(self._tensor_by_name.values())

    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors, in the order of the file."""
        return tuple(self._tensor_by_name)

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file has a tensor of this GGUF name."""
        return name in self._tensor_by_name

    def shape(self, name: str) -> tuple[int, ...]:
        """Outermost size first; raises ``ModelLoadError`` for a tensor that is not there."""
        return tuple(reversed(self.tensor(name).sizes))

    def tensor(self, name: str) -> GgufTensor:
        """An entry; raises ``ModelLoadError`` for a tensor that is not there."""
        if name not in self._tensor_by_name:
            message = (
                f"{self.path}: tensor {name} is missing; the file is incomplete or of another "
                "architecture than it names"
            )
            raise ModelLoadError(message)
        return self._tensor_by_name[name]
