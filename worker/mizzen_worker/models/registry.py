"""Owns the table of known architectures; loads no weights itself."""

from pathlib import Path
from typing import Protocol

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.layers.operations import Operations, V, W, W_co, WeightPreparer
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.mistral import MISTRAL
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.qwen2 import QWEN2
from mizzen_worker.models.qwen3 import QWEN3
from mizzen_worker.models.weight_source import WeightSource


class Model(Protocol[W_co]):
    """What every architecture offers."""

    def forward(self, ops: "Operations[V, W_co]") -> V:
        """Run the step that ``ops`` stands for; returns the sampled tokens' logits."""
        ...


_ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3)
_BY_NAME = {architecture.name: architecture for architecture in _ARCHITECTURES}
_BY_GGUF_NAME = {a.gguf_name: a for a in _ARCHITECTURES if a.gguf_name is not None}


def architecture_of(name: str, file: Path) -> Architecture:
    """The architecture that a config.json names; raises ``ModelLoadError``."""
    if name not in _BY_NAME:
        known = ", ".join(sorted(_BY_NAME))
        message = f"{file}: architecture {name!r} is not supported; known are: {known}"
        raise ModelLoadError(message)
    return _BY_NAME[name]


def gguf_architecture_of(name: str, file: Path) -> Architecture:
    """The architecture that a GGUF file names; raises ``ModelLoadError``."""
    if name not in _BY_GGUF_NAME:
        known = ", ".join(sorted(_BY_GGUF_NAME))
        message = f"{file}: GGUF architecture {name!r} is not supported; known are: {known}"
        raise ModelLoadError(message)
    return _BY_GGUF_NAME[name]


def build_model(facts: ModelFacts, source: WeightSource, prepare: WeightPreparer[W]) -> Model[W]:
    """Read and prepare all weights of a known architecture."""
    return DenseDecoder(_BY_NAME[facts.architecture], facts, source, prepare)
