"""Owns the table of known architectures; builds no model, so that facts are read without torch."""

from pathlib import Path

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.mistral import MISTRAL
from mizzen_worker.models.mixtral import MIXTRAL
from mizzen_worker.models.qwen2 import QWEN2
from mizzen_worker.models.qwen3 import QWEN3
from mizzen_worker.models.qwen3_moe import QWEN3_MOE

_ARCHITECTURES = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE)
ARCHITECTURE_BY_NAME = {architecture.name: architecture for architecture in _ARCHITECTURES}
_BY_GGUF_NAME = {a.gguf_name: a for a in _ARCHITECTURES if a.gguf_name is not None}


def architecture_of(name: str, file: Path) -> Architecture:
    """The architecture that a config.json names; raises ``ModelLoadError``."""
    if name not in ARCHITECTURE_BY_NAME:
        known = ", ".join(sorted(ARCHITECTURE_BY_NAME))
        message = f"{file}: architecture {name!r} is not supported; known are: {known}"
        raise ModelLoadError(message)
    return ARCHITECTURE_BY_NAME[name]


def gguf_architecture_of(name: str, file: Path) -> Architecture:
    """The architecture that a GGUF file names; raises ``ModelLoadError``."""
    if name not in _BY_GGUF_NAME:
        known = ", ".join(sorted(_BY_GGUF_NAME))
        message = f"{file}: GGUF architecture {name!r} is not supported; known are: {known}"
        raise ModelLoadError(message)
    return _BY_GGUF_NAME[name]
