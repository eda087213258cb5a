"""Owns how many values a model's weights hold, by its sizes alone. Pure."""

from mizzen_worker.models.model_facts import ModelFacts


def parameter_count(facts: ModelFacts) -> int:
    """Values of all matrices and norms; biases, a few thousand values, are left out."""
    shape = facts.shape
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    rows = shape.num_layers * (2 * query_size + 2 * kv_size)
    rows += shape.vocab_size * (1 if facts.tie_embeddings else 2)
    num_dense = shape.num_layers
    if shape.experts is not None:
        num_dense -= len(shape.experts.layers)
        # A row of the router, and the three matrices of a gated MLP.
        expert = 1 + 3 * shape.experts.intermediate_size
        rows += len(shape.experts.layers) * shape.experts.num_experts * expert
    rows += num_dense * 3 * shape.intermediate_size
    norms = 2 * shape.num_layers + 1
    return shape.hidden_size * (rows + norms)
