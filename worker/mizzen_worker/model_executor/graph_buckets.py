"""Owns which steps are captured, and their sizes; captures none. Pure."""

from mizzen_worker.model_executor.tail import Tail
from mizzen_worker.models.model_facts import ModelShape

MAX_DECODE_ROWS = 1024
_SMALL_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Weights take as long to read for 17 rows as for 32, and so on: sizes between save little."""
_LARGE_BUCKETS = (*range(144, 256, 16), *range(256, 513, 32))
"""Here products take longer with every row."""
_COMMON_TOKENS = (64, 128, 256, 512, 1024, 2048)
"""Captured for every model: prompts of just these lengths need no padding."""
_OTHER_TOKENS = (384, 768, 1536, 3072, 4096, 6144)
_WHOLE_CHUNK = 8192
"""The most prompt tokens of a step, unless another number is asked for."""
_LEAST_FILL = 15 / 16
"""Filled so far, a size is taken whatever its padding costs."""
_HOST_SECONDS_PER_LAYER = 600e-6
"""That launching a layer's kernels one by one takes; a dozen, some of them in Python.

Of qwen06b's 8,192 tokens the device computes a layer in 500 us, and waited 200 us for the next.
"""
_OPERATIONS_PER_SECOND = 600e12
_LEAST_SHARED_ROWS = 16
CAPTURED_TAILS = (Tail.BEST, Tail.DRAWN, Tail.LOGITS)


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Rows of the decode graphs, rising; the last is ``max_rows``, or the most that is captured."""
    most = min(max_rows, MAX_DECODE_ROWS)
    sizes = (*_SMALL_BUCKETS, *_LARGE_BUCKETS, *range(640, MAX_DECODE_ROWS, 128))
    return (*(size for size in sizes if size < most), most)


def longest_padded(shape: ModelShape) -> int:
    """Tokens that take the device as long as the host takes to launch their kernels one by one.

    A captured step of so many tokens is faster than one of few that is launched, padded or not.
    Beyond, the host keeps ahead of the device anyway, and padding is time lost.
    """
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    width, experts = shape.intermediate_size, shape.experts
    if experts is not None and len(experts.layers) > shape.num_layers // 2:
        width = experts.num_chosen * experts.intermediate_size
    num_values = shape.hidden_size * (2 * query_size + 2 * kv_size + 3 * width)
    return int(_HOST_SECONDS_PER_LAYER * _OPERATIONS_PER_SECOND / (2 * num_values))


def prefill_buckets(context_length: int, longest: int | None = None) -> tuple[tuple[int, int], ...]:
    """(tokens, rows) of the graphs, rising; one of the rows is the padding's.

    Padding must not outgrow a row of the page table. ``longest``: as of ``longest_padded``. A whole
    chunk needs hardly any padding: it is captured where launching it would keep the host for more
    than half of its time, for there is the next chunk to be prepared.
    """
    others = [tokens for tokens in _OTHER_TOKENS if longest is None or tokens <= longest]
    if longest is None or 2 * longest >= _WHOLE_CHUNK:
        others.append(_WHOLE_CHUNK)
    return tuple(
        (tokens, rows)
        for tokens in sorted([*_COMMON_TOKENS, *others])
        for rows in _prefill_rows(tokens)
        if tokens <= context_length
    )


def most_captured_tokens(context_length: int, longest: int) -> int:
    """Prompt tokens of the largest captured forward, 0 where there is none."""
    return max((tokens for tokens, _ in prefill_buckets(context_length, longest)), default=0)


def uncaptured_tokens(context_length: int, longest: int) -> int:
    """Tokens of a small step with prompts for which nothing is captured, if rows are not many."""
    buckets = prefill_buckets(context_length, longest)
    return 1 + max(
        (tokens for tokens, _ in buckets if tokens <= longest), default=_COMMON_TOKENS[0]
    )


def _prefill_rows(tokens: int) -> tuple[int, ...]:
    """Rows cost little beside many tokens, and many tokens are seldom of one row."""
    if tokens > 2048:
        return (256,)
    return (16, 256) if tokens > 256 else (16, 64, 256) if tokens == 256 else (16, 64)


def is_worth_padding(num_tokens: int, captured: int, longest: int | None) -> bool:
    """Whether a captured step of more tokens is faster than launching ``num_tokens``."""
    return longest is None or captured <= longest or num_tokens >= _LEAST_FILL * captured


def has_shared_graph(num_rows: int, tail: Tail) -> bool:
    """Whether there is a decode graph that reads shared prefixes once, beside one that does not.

    Few rows save little, and what follows the logits eagerly takes longer than is saved.
    """
    return num_rows >= _LEAST_SHARED_ROWS and tail is not Tail.LOGITS


def num_graphs(max_rows: int, context_length: int) -> int:
    """At most so many are captured for a runner."""
    kinds = [(size, tail) for size in decode_buckets(max_rows) for tail in CAPTURED_TAILS]
    num_shared = sum(has_shared_graph(size, tail) for size, tail in kinds)
    return len(kinds) + num_shared + len(prefill_buckets(context_length))
