"""Owns what one rank of a model takes of memory, by arithmetic alone: the worker's own formula.

Does not own whether that fits (``memory_fit``). The worker may not be imported, so its formula is
written down here again, and ``tests/contract/test_memory.py`` compares the two. Sizes are bytes.
Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mizzen_operator.spec.shape_facts import ShapeFacts

CUDA_BYTES = (1 << 30) * 6 // 10
"""Taken by a process that uses a GPU at all."""
_GRAPH_BYTES = 8 << 20
_FP8_BLOCK = 128
_MOST_CAPTURED_ROWS = 1024
_CAPTURED_ROWS: tuple[int, ...] = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128),
    *range(144, 256, 16),
    *range(256, 513, 32),
    *range(640, _MOST_CAPTURED_ROWS, 128),
)
_GRAPHS_BY_CAPTURED_TOKENS = {64: 2, 128: 2, 256: 3, 512: 2, 1024: 2, 2048: 2}
"""How many graphs are captured for prompts of so many tokens, for every model."""
_GRAPHS_BY_OTHER_TOKENS = {384: 2, 768: 2, 1536: 2, 3072: 1, 4096: 1, 6144: 1}
"""The same for models small enough for padding to pay."""
_WHOLE_CHUNK = 8192
_GRAPHS_PER_ROWS = 3
_LEAST_SHARED_ROWS = 16
_SHARED_GRAPHS_PER_ROWS = 2
_LAYER_OPERATIONS = 600e-6 * 600e12
"""Operations of a device in the time that the host takes to launch a layer's kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """What a step of the engine is bounded by; ``value_bytes`` is of the type of computing.

    ``is_packed``: matrices of layers are rounded to FP8 as they are loaded. ``context_length`` is
    the engine's, at most the model's.
    """

    max_chunk_tokens: int
    max_rows: int
    value_bytes: int
    is_packed: bool
    uses_graphs: bool
    context_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNeed:
    """What a rank on a GPU takes before keys and values."""

    weights_bytes: int
    cuda_bytes: int
    step_bytes: int
    graphs_bytes: int


def division_problem(facts: ShapeFacts, ranks: int) -> str:
    """Why the model cannot be divided among so many tensor parallel ranks; empty if it can."""
    return next(_division_problems(facts, ranks), "")


def facts_of_rank(facts: ShapeFacts, ranks: int) -> ShapeFacts:
    """The model as rank 0 has it, which has no less than any other; ``ranks`` must divide it."""
    experts = facts.experts
    if experts is not None:
        inner = experts.intermediate_size // ranks
        experts = experts.model_copy(update={"intermediate_size": inner})
    own = {
        "num_heads": facts.num_heads // ranks,
        "num_kv_heads": max(1, facts.num_kv_heads // ranks),
        "intermediate_size": facts.intermediate_size // ranks,
        "vocab_size": -(-facts.vocab_size // ranks),
        "experts": experts,
    }
    return facts.model_copy(update=own)


def kv_token_bytes(facts: ShapeFacts, kv_value_bytes: int) -> int:
    """Keys and values of one position in all layers."""
    return 2 * facts.num_layers * facts.num_kv_heads * facts.head_dim * kv_value_bytes


def weights_bytes(facts: ShapeFacts, value_bytes: int, *, is_packed: bool) -> int:
    """All weights; FP8 ones take a byte each, and their scales a 32nd of that."""
    num_values = _num_values(facts)
    is_stored_so = facts.fp8_scales is not None and facts.experts is None
    if not (is_packed or is_stored_so):
        return num_values * value_bytes
    vocabularies = facts.vocab_size * facts.hidden_size * (1 if facts.tie_embeddings else 2)
    return vocabularies * value_bytes + (num_values - vocabularies) * 33 // 32


def need_on_gpu(own: ShapeFacts, sizes: EngineSizes, *, vocab_size: int) -> RankNeed:
    """What a rank takes; ``vocab_size`` is the whole model's, for every rank has all logits."""
    prefill = _prefill_graphs(own, sizes.context_length)
    rows = max(sizes.max_rows, max(prefill, default=0))
    graphs = _step_bytes(own, sizes, rows, vocab_size)
    graphs += _num_graphs(sizes) * _GRAPH_BYTES
    chunk = sizes.max_chunk_tokens + sizes.max_rows
    return RankNeed(
        weights_bytes=weights_bytes(own, sizes.value_bytes, is_packed=sizes.is_packed),
        cuda_bytes=CUDA_BYTES,
        step_bytes=_step_bytes(own, sizes, chunk, vocab_size),
        graphs_bytes=graphs if sizes.uses_graphs else 0,
    )


def _num_values(facts: ShapeFacts) -> int:
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    rows = facts.num_layers * (2 * queries + 2 * keys)
    rows += facts.vocab_size * (1 if facts.tie_embeddings else 2)
    num_dense, experts = facts.num_layers, facts.experts
    if experts is not None:
        num_dense -= experts.num_layers
        rows += experts.num_layers * experts.num_experts * (1 + 3 * experts.intermediate_size)
    rows += num_dense * 3 * facts.intermediate_size
    return facts.hidden_size * (rows + 2 * facts.num_layers + 1)


def _step_bytes(facts: ShapeFacts, sizes: EngineSizes, num_tokens: int, vocab_size: int) -> int:
    """Rows of the widest part of a layer beside three of the model's own, and float32 logits."""
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    inner = 2 * facts.intermediate_size
    if facts.experts is not None:
        width = facts.experts.intermediate_size + facts.hidden_size
        inner = max(inner, facts.experts.num_chosen * width)
    row = 3 * facts.hidden_size + max(2 * queries + 2 * keys, inner)
    return num_tokens * row * sizes.value_bytes + 4 * 4 * sizes.max_rows * vocab_size


def _prefill_graphs(facts: ShapeFacts, context_length: int) -> dict[int, int]:
    """Graphs by the prompt tokens that they are captured for."""
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    width, experts = facts.intermediate_size, facts.experts
    if experts is not None and experts.num_layers > facts.num_layers // 2:
        width = experts.num_chosen * experts.intermediate_size
    layer = facts.hidden_size * (2 * queries + 2 * keys + 3 * width)
    longest = int(_LAYER_OPERATIONS / (2 * layer))
    graphs = dict(_GRAPHS_BY_CAPTURED_TOKENS)
    graphs |= {key: num for key, num in _GRAPHS_BY_OTHER_TOKENS.items() if key <= longest}
    if 2 * longest >= _WHOLE_CHUNK:
        graphs[_WHOLE_CHUNK] = 1
    return {tokens: num for tokens, num in graphs.items() if tokens <= context_length}


def _num_graphs(sizes: EngineSizes) -> int:
    """The most that are captured for any model."""
    largest = min(sizes.max_rows, _MOST_CAPTURED_ROWS)
    rows = {*(size for size in _CAPTURED_ROWS if size < largest), largest}
    num_shared: int = sum(size >= _LEAST_SHARED_ROWS for size in rows) * _SHARED_GRAPHS_PER_ROWS
    prefill = {**_GRAPHS_BY_CAPTURED_TOKENS, **_GRAPHS_BY_OTHER_TOKENS, _WHOLE_CHUNK: 1}
    num_prefill = sum(num for tokens, num in prefill.items() if tokens <= sizes.context_length)
    return len(rows) * _GRAPHS_PER_ROWS + num_shared + num_prefill


def _division_problems(facts: ShapeFacts, ranks: int) -> Iterator[str]:
    if facts.num_heads % ranks:
        yield f"{ranks} ranks do not divide the model's {facts.num_heads} attention heads"
    if facts.num_kv_heads % ranks and ranks % facts.num_kv_heads:
        yield f"{ranks} ranks do not share the model's {facts.num_kv_heads} KV heads"
    inner = list(_inner_sizes(facts))
    for size in inner:
        if size % ranks:
            yield f"{ranks} ranks do not divide the model's intermediate size of {size}"
    if -(-facts.vocab_size // ranks) * (ranks - 1) >= facts.vocab_size:
        yield f"{ranks} ranks are too many for the model's vocabulary of {facts.vocab_size}"
    if facts.fp8_scales == "blocks":
        for size in (facts.num_heads * facts.head_dim, *inner):
            is_whole = size > _FP8_BLOCK and not size % _FP8_BLOCK
            if is_whole and size // ranks % _FP8_BLOCK:
                yield f"{ranks} ranks cut a size of {size} inside an FP8 block of {_FP8_BLOCK}"


def _inner_sizes(facts: ShapeFacts) -> Iterator[int]:
    experts = facts.experts
    if experts is not None:
        yield experts.intermediate_size
    if experts is None or experts.num_layers < facts.num_layers:
        yield facts.intermediate_size
