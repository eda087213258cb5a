"""Owns which steps are captured, and their sizes; captures none. Pure."""

from mizzen_worker.model_executor.tail import Tail

MAX_DECODE_ROWS = 1024
_SMALL_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Weights take as long to read for 17 rows as for 32, and so on: sizes between save little."""
_LARGE_BUCKETS = (*range(144, 256, 16), *range(256, 513, 32))
"""Here products take longer with every row."""
_PREFILL_TOKENS = (64, 128, 256, 512, 1024, 2048)
_PREFILL_ROWS = (16, 64, 256)
"""One of them is the padding's."""
_LEAST_SHARED_ROWS = 16
CAPTURED_TAILS = (Tail.BEST, Tail.DRAWN, Tail.LOGITS)


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Rows of the decode graphs, rising; the last is ``max_rows``, or the most that is captured."""
    most = min(max_rows, MAX_DECODE_ROWS)
    sizes = (*_SMALL_BUCKETS, *_LARGE_BUCKETS, *range(640, MAX_DECODE_ROWS, 128))
    return (*(size for size in sizes if size < most), most)


def prefill_buckets(context_length: int) -> tuple[tuple[int, int], ...]:
    """(tokens, rows) of the graphs, rising; padding must not outgrow a row of the page table."""
    return tuple(
        (tokens, rows)
        for tokens in _PREFILL_TOKENS
        for rows in _PREFILL_ROWS
        if tokens <= context_length and rows <= tokens
    )


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
