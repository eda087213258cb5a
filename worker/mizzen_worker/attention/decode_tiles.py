"""Owns the choice of tiles and splits for decode attention, as measured; launches nothing.

Measured on an H200 with head size 128 in bfloat16 (heads 16/8 and 32/8, contexts of 700 to 2,048).
Other head sizes and types keep the bytes of a tile; other GPUs (SM 80, 89) take the same tiles,
which fit their shared memory, but were not tuned there.
"""

from dataclasses import dataclass

from mizzen_worker.kernels.gpu.decode_attention import DecodeTile
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, query_block
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS

_ROW_BYTES = 256
"""Of a key for which the tiles were measured: 128 elements of two bytes."""
_MANY_PROGRAMS = 512
"""Programs of 2 warps that keep 132 multiprocessors reading."""
_SOME_PROGRAMS = 256
_MOST_SPLITS = 16
"""One warp merges them, in registers: fewer where rows are wider."""
_LEAST_TOKENS = 16
"""A tensor core's step along the positions."""
_SHARED_PROGRAMS = 128
"""Of a shared prefix: 8 warps each, one to a multiprocessor."""
_MOST_SHARED_SPLITS = 8
"""More of them cost more to write and to merge than they gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWork:
    """Bounds of a step's decode rows. ``row_bytes``: of one key as it is computed with.

    ``max_length`` positions are visible in the longest row.
    """

    num_rows: int
    num_heads: int
    num_kv_heads: int
    row_bytes: int
    max_length: int


def _tokens(measured: int, row_bytes: int) -> int:
    """Positions of a tile that has the bytes of the measured one, at most its positions."""
    scaled = measured * _ROW_BYTES // row_bytes
    power = 1 << max(scaled, 1).bit_length() - 1
    return max(_LEAST_TOKENS, min(measured, power))


def _power_below(number: int) -> int:
    return 1 << max(number, 1).bit_length() - 1


def decode_tile(work: DecodeWork, *, has_shared: bool = False) -> DecodeTile:
    """The tile for rows of their own; ``has_shared``: their shared positions are done already.

    What is left of a row is short then, and results are merged in the same kernel if it has one
    split, so fewer programs are enough.
    """
    programs = work.num_rows * work.num_kv_heads
    wanted = _SOME_PROGRAMS if has_shared else _MANY_PROGRAMS
    if has_shared:
        tokens, num_warps, is_ahead = 32, 2, True
    elif programs >= _SOME_PROGRAMS:
        tokens, num_warps, is_ahead = 64, 2, False
    else:
        tokens, num_warps, is_ahead = 64, 4, True
    tokens = _tokens(tokens, work.row_bytes)
    most = _power_below(-(-work.max_length // tokens))
    most = min(most, _power_below(_MOST_SPLITS * _ROW_BYTES // work.row_bytes), _MOST_SPLITS)
    splits = min(_power_below(wanted // programs), most)
    return DecodeTile(
        tokens=tokens, num_warps=num_warps, num_stages=3, is_ahead=is_ahead, splits=splits
    )


def shared_tile(work: DecodeWork) -> SharedTile:
    """The tile for prefixes that rows share; splits as if all rows were in full items."""
    group = work.num_heads // work.num_kv_heads
    block = query_block(SHARED_ITEM_ROWS, group)
    heads = work.num_kv_heads * -(-SHARED_ITEM_ROWS * group // block)
    num_items = -(-work.num_rows // SHARED_ITEM_ROWS)
    splits = min(_power_below(_SHARED_PROGRAMS // (heads * num_items)), _MOST_SHARED_SPLITS)
    return SharedTile(
        tokens=_tokens(64, work.row_bytes),
        num_warps=8 if block >= 128 else 4,
        num_stages=3,
        splits=splits,
        lanes=max(1, 2 * _SHARED_PROGRAMS // (heads * splits)),
    )
