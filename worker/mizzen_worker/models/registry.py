"""Owns making a model of its facts and weights; loads no weights itself."""

from typing import Protocol

from mizzen_worker.layers.operations import Operations, V, W, W_co, WeightPreparer
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.weight_source import WeightSource


class Model(Protocol[W_co]):
    """What every architecture offers."""

    def forward(self, ops: "Operations[V, W_co]") -> V:
        """Run the step that ``ops`` stands for; returns the sampled tokens' logits."""
        ...


def build_model(facts: ModelFacts, source: WeightSource, prepare: WeightPreparer[W]) -> Model[W]:
    """Read and prepare all weights of a known architecture."""
    return DenseDecoder(ARCHITECTURE_BY_NAME[facts.architecture], facts, source, prepare)
