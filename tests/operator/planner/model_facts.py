"""Owns what the Job tells of a model that tests reckon with."""

from typing import Any

from mizzen_operator.spec.shape_facts import ShapeFacts, shape_facts_of

LLAMA8B: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "fileFormat": "safetensors",
    "contextLength": 131_072,
    "numLayers": 32,
    "hiddenSize": 4096,
    "intermediateSize": 14_336,
    "numHeads": 32,
    "numKvHeads": 8,
    "headDim": 128,
    "vocabSize": 128_256,
    "tieEmbeddings": False,
}
"""8 billion values: 14.96 GiB in bfloat16."""


def facts(**changed: Any) -> ShapeFacts:
    """The model's facts with some changed."""
    found = shape_facts_of({**LLAMA8B, **changed})
    assert found is not None
    return found
