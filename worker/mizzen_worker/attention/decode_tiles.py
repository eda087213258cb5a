"""Owns the choice of tiles and splits for decode attention, as measured; launches nothing.

Measured on an H200 with head size 128 in bfloat16 (heads 16/8, 32/8 and 32/4), inside whole layers,
with rows of one length and with rows of 400 to 1,900 positions. Other head sizes and types keep the
bytes of a tile; other GPUs (SM 80, 89) take the same tiles, which fit their shared memory, but were
not tuned there.
"""

from dataclasses import dataclass

from mizzen_worker.kernels.gpu.decode_attention import DecodeTile
from mizzen_worker.kernels.gpu.shared_prefix_attention import SharedTile, query_block
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS

_ROW_BYTES = 256
"""Of a key for which the tiles were measured: 128 elements of two bytes."""
_PROGRAMS = 512
"""That keep 132 multiprocessors reading, whatever the lengths of the rows."""
_SHARED_OWN_PROGRAMS = 256
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
    pairs = work.num_rows * work.num_kv_heads
    if has_shared:
        tokens, num_warps, is_ahead = 32, 2, True
        splits = _power_below(_SHARED_OWN_PROGRAMS // pairs)
    else:
        is_ahead, splits = _own_way(pairs)
        tokens, num_warps = 64, 4 if is_ahead else 2
    tokens = _tokens(tokens, work.row_bytes)
    most = min(-(-work.max_length // tokens), _MOST_SPLITS * _ROW_BYTES // work.row_bytes)
    return DecodeTile(
        tokens=tokens,
        num_warps=num_warps,
        num_stages=3,
        is_ahead=is_ahead,
        splits=max(1, min(splits, most, _MOST_SPLITS)),
    )


def _own_way(pairs: int) -> tuple[bool, int]:
    """Whether page ids are read ahead, and splits, for so many rows times KV heads.

    With page ids ahead (and four warps) three programs run on a multiprocessor, else four to five.
    Where the programs fill them about once, a long row would end alone: so rows are cut in two up
    to 576 pairs, which costs rows of one length some 2 %.
    """
    if pairs < _PROGRAMS // 2:
        return True, round(_PROGRAMS / pairs)
    if pairs <= 576:
        return 288 < pairs <= 448, 2
    return pairs <= 896, 1


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
