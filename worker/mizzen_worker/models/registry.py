"""Owns the table from architecture name to model class; loads no weights itself."""

from typing import Protocol

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.layers.operations import Operations, V, W, W_co, WeightPreparer
from mizzen_worker.models.llama import Llama
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.weight_source import WeightSource


class Model(Protocol[W_co]):
    """What every architecture offers."""

    def forward(self, ops: "Operations[V, W_co]") -> V:
        """Run the step that ``ops`` stands for; returns the sampled tokens' logits."""
        ...


_CLASS_BY_ARCHITECTURE = {"LlamaForCausalLM": Llama}


def require_known(architecture: str) -> None:
    """Raise ``ModelLoadError`` for an architecture that is not in the table."""
    if architecture not in _CLASS_BY_ARCHITECTURE:
        known = ", ".join(sorted(_CLASS_BY_ARCHITECTURE))
        message = f"architecture {architecture!r} is not supported; known are: {known}"
        raise ModelLoadError(message)


def build_model(facts: ModelFacts, source: WeightSource, prepare: WeightPreparer[W]) -> Model[W]:
    """Read and prepare all weights of a known architecture."""
    require_known(facts.architecture)
    return _CLASS_BY_ARCHITECTURE[facts.architecture](facts, source, prepare)
