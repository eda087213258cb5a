"""Owns what a model is expected to take of a GPU's memory, by arithmetic alone. Pure.

Weights and KV are exact; the largest step and graphs are estimates, which a start replaces by what
it measures (``memory_profile.py``). The sum is that of ``memory/plan.py``.
"""

from dataclasses import dataclass

from mizzen_worker.memory.plan import GIB, MemoryUse, kv_token_bytes
from mizzen_worker.model_executor.graph_buckets import (
    longest_padded,
    most_captured_tokens,
    num_graphs,
)
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.parameter_count import parameter_count

CUDA_BYTES = GIB * 6 // 10
"""Taken by a process that uses a GPU at all: context, libraries, kernels."""
GRAPH_BYTES = 8 << 20
"""What the driver takes for one captured step, beside the memory that all of them share."""
_HIDDEN_COPIES = 3
"""Residual, normed and next rows are there at the same time."""
_LOGIT_COPIES = 4
"""Of float32: logits, adjusted ones, and what scores need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """What the largest step follows from; ``value_bytes`` of the compute type.

    ``is_packed``: matrices of layers are FP8. Beside ``own_facts`` of a rank, ``vocab_size`` is the
    whole one: every rank has all logits. None: of the facts.
    """

    max_chunk_tokens: int
    max_rows: int
    value_bytes: int = 2
    is_packed: bool = False
    vocab_size: int | None = None


def model_kv_token_bytes(facts: ModelFacts, *, value_bytes: int) -> int:
    """Keys and values of one position in all layers."""
    shape = facts.shape
    return kv_token_bytes(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        value_bytes=value_bytes,
    )


def weights_bytes(facts: ModelFacts, value_bytes: int, *, is_packed: bool) -> int:
    """All weights; FP8 ones take a byte each, and their scales of blocks a 32nd of that.

    ``is_packed``: matrices of layers are rounded to FP8, even if they are not stored so. Those of
    experts are never kept so.
    """
    count = parameter_count(facts)
    is_stored_so = facts.fp8_scales is not None and facts.shape.experts is None
    if not (is_packed or is_stored_so):
        return count * value_bytes
    shape = facts.shape
    vocabularies = shape.vocab_size * shape.hidden_size * (1 if facts.tie_embeddings else 2)
    return vocabularies * value_bytes + (count - vocabularies) * 33 // 32


def estimated_use(
    facts: ModelFacts, sizes: EngineSizes, *, total_bytes: int, fraction: float
) -> MemoryUse:
    """What is expected to be taken and set aside on a GPU that nobody else uses."""
    captured = most_captured_tokens(facts.context_length, longest_padded(facts.shape))
    captured_bytes = _step_bytes(facts, max(sizes.max_rows, captured), sizes)
    graphs = num_graphs(sizes.max_rows, facts.context_length)
    return MemoryUse(
        total_bytes=total_bytes,
        fraction=fraction,
        weights_bytes=weights_bytes(facts, sizes.value_bytes, is_packed=sizes.is_packed),
        other_bytes=CUDA_BYTES,
        step_bytes=_step_bytes(facts, sizes.max_chunk_tokens + sizes.max_rows, sizes),
        graphs_bytes=captured_bytes + graphs * GRAPH_BYTES,
    )


def _step_bytes(facts: ModelFacts, num_tokens: int, sizes: EngineSizes) -> int:
    """Rows of the widest part of a layer, and the logits of every row."""
    shape = facts.shape
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    mlp = 2 * shape.intermediate_size
    if shape.experts is not None:
        chosen = shape.experts.num_chosen
        mlp = max(mlp, chosen * (shape.experts.intermediate_size + shape.hidden_size))
    widest = max(2 * queries + 2 * keys, mlp)
    rows = num_tokens * (_HIDDEN_COPIES * shape.hidden_size + widest) * sizes.value_bytes
    vocab_size = sizes.vocab_size or shape.vocab_size
    return rows + _LOGIT_COPIES * 4 * sizes.max_rows * vocab_size
