"""Owns reading a fetched model's sizes; reads headers only, and needs no torch."""

from pathlib import Path

import msgspec

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.fetch.manifest import ExpertFacts, ShapeFacts
from mizzen_worker.model_executor.weights.gguf_shape import (
    architecture_in,
    context_length,
    read_gguf_shape,
    ties_embeddings,
)
from mizzen_worker.model_executor.weights.gguf_table import GgufTable
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts
from mizzen_worker.models.model_facts import ModelFacts, ModelShape
from mizzen_worker.vocabulary.model_path import find_gguf


def read_shape_facts(folder: Path) -> ShapeFacts:
    """Raises ``ModelLoadError`` for a model that the engine would not serve."""
    gguf = find_gguf(folder)
    if gguf is not None:
        table = GgufTable(gguf)
        architecture = architecture_in(table)
        return _facts(
            read_gguf_shape(table, architecture),
            architecture=architecture.name,
            file_format="gguf",
            context_length=context_length(table, architecture),
            tie_embeddings=ties_embeddings(table),
        )
    if not (folder / "config.json").is_file():
        message = f"{folder}: holds neither config.json nor a GGUF file; check the source"
        raise ModelLoadError(message)
    return facts_told(read_folder_facts(folder, has_weights=False))


def facts_told(facts: ModelFacts) -> ShapeFacts:
    """What is told of a folder with ``config.json`` and safetensors, of all that is known of it."""
    found = _facts(
        facts.shape,
        architecture=facts.architecture,
        file_format="safetensors",
        context_length=facts.context_length,
        tie_embeddings=facts.tie_embeddings,
    )
    return msgspec.structs.replace(found, fp8_scales=facts.fp8_scales, has_fp8_kv=facts.has_fp8_kv)


def _facts(
    shape: ModelShape,
    *,
    architecture: str,
    file_format: str,
    context_length: int,
    tie_embeddings: bool,
) -> ShapeFacts:
    experts = None
    if shape.experts is not None:
        experts = ExpertFacts(
            num_experts=shape.experts.num_experts,
            num_chosen=shape.experts.num_chosen,
            intermediate_size=shape.experts.intermediate_size,
            num_layers=len(shape.experts.layers),
        )
    return ShapeFacts(
        architecture=architecture,
        file_format=file_format,
        context_length=context_length,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tie_embeddings=tie_embeddings,
        experts=experts,
    )
