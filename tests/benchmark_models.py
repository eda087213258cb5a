"""Owns what tests and measures need of the benchmarks' models: folders, facts, sizes.

The numbers themselves are the product's (``mizzen_worker/bench/shapes.py``). No weights.
"""

import functools
import json
import tempfile
from pathlib import Path

from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts
from mizzen_worker.models.model_facts import ModelFacts, ModelShape


def write_config(folder: Path, name: str, num_layers: int | None = None) -> None:
    """Make ``folder`` that of a model, without its weights."""
    config = dict(SHAPES[name])
    if num_layers is not None:
        config["num_hidden_layers"] = num_layers
    (folder / "config.json").write_text(json.dumps(config))


@functools.cache
def facts_of(name: str, num_layers: int | None = None) -> ModelFacts:
    """What the worker reads of a model's folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), name, num_layers)
        return read_folder_facts(Path(folder), has_weights=False)


LLAMA8B = facts_of("llama8b").shape
QWEN06B = facts_of("qwen06b").shape
QWEN30B_A3B = facts_of("qwen30b-a3b").shape
DENSE = (LLAMA8B, QWEN06B)
ALL = (*DENSE, QWEN30B_A3B)
HAVE_HEAD_NORMS = (QWEN06B, QWEN30B_A3B)
"""Queries and keys are normed head by head."""

HEADS = tuple((shape.num_heads, shape.num_kv_heads, shape.head_dim) for shape in ALL)


def expert_sizes(shape: ModelShape) -> tuple[int, int, int, int]:
    """Experts, how many of them a token takes, hidden size, size inside an expert."""
    assert shape.experts is not None
    experts = shape.experts
    return experts.num_experts, experts.num_chosen, shape.hidden_size, experts.intermediate_size


EXPERT_SIZES = (
    expert_sizes(QWEN30B_A3B),
    # Mixtral 8x7B: few experts, large ones. No benchmark runs it.
    (8, 2, 4096, 14_336),
)


def qkv_size(shape: ModelShape) -> int:
    """Outputs of the projection to queries, keys and values."""
    return (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
