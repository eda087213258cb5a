"""Owns sums of products of a matrix's rows with one row, inside kernels; launches nothing.

A warp owns ``ROWS`` whole rows, so that sums need shuffles only and a chunk of ``x``, once
unpacked, serves all of them: tiles are [num_warps, 256] (one row a warp), several of them per
chunk. ``x`` is read through a pointer tile of that shape; a vector would pass through shared
memory. The first ``AHEAD`` chunks are loaded by ``load_ahead``, before a kernel waits.

FP8 rows are converted in registers, so a product takes half the bytes. A row's scale multiplies its
sum; scales of groups of columns multiply products, and are read where they are needed.
"""

import triton
import triton.language as tl

from mizzen_worker.kernels.fp8_matrix import GROUP

CHUNK = tl.constexpr(256)
"""Columns of a tile: 16 bytes of bfloat16 a thread."""
_GROUP = tl.constexpr(GROUP)


@triton.jit
def row_pointers(w_ptr, rows, K: tl.constexpr):
    """Pointers to the first chunk of [num_warps] rows."""
    return w_ptr + rows[:, None].to(tl.int64) * K + tl.arange(0, CHUNK)[None, :]


@triton.jit
def inside(rows, N: tl.constexpr, BLOCK: tl.constexpr):
    """Rows past the end become the last one: loads need no mask, only stores do."""
    if N % BLOCK != 0:
        rows = tl.minimum(rows, N - 1)
    return rows


@triton.jit
def load_chunk(pointers, c: tl.constexpr, K: tl.constexpr):
    """Chunk ``c`` of some rows; zeros past the end."""
    if (c + 1) * CHUNK <= K:
        tile = tl.load(pointers + c * CHUNK)
    else:
        mask = (tl.arange(0, CHUNK) < K - c * CHUNK)[None, :]
        tile = tl.load(pointers + c * CHUNK, mask=mask, other=0.0)
    return tile


@triton.jit
def load_ahead(rows, K: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr):
    """The first chunks of a tuple of ``ROWS`` pointer tiles: chunk by chunk, row by row."""
    tiles = ()
    for c in tl.static_range(AHEAD):
        for r in tl.static_range(ROWS):
            tiles = tiles + (load_chunk(rows[r], c, K),)
    return tiles


@triton.constexpr_function
def _num_turns(num_full_chunks, ahead):
    """Rounds of ``ahead`` whole chunks that are followed by another such round."""
    return max(num_full_chunks // ahead - 1, 0)


@triton.jit
def scale_pointers(scale_ptr, rows, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Pointers to the scales of a tuple of ``ROWS`` tiles of rows; none without scales."""
    scales = ()
    if GROUPS > 0:
        for r in tl.static_range(ROWS):
            scales = scales + (scale_ptr + rows[r],)
    return scales


@triton.jit
def _scaled(products, scale, group, N, WARPS: tl.constexpr, GROUPS: tl.constexpr):
    """A chunk's products times the scales of its groups, the first of which is ``group``."""
    PER_CHUNK: tl.constexpr = CHUNK // _GROUP
    groups = group + tl.arange(0, PER_CHUNK)
    factors = tl.load(
        scale[:, None] + groups[None, :] * N, mask=(groups < GROUPS)[None, :], other=0.0
    )
    grouped = tl.reshape(products, [WARPS, PER_CHUNK, _GROUP]) * factors[:, :, None]
    return tl.reshape(grouped, [WARPS, CHUNK])


@triton.jit
def _add_chunk(
    x,
    tiles,
    squares,
    products,
    scales,
    group,
    N,
    c: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
):
    if NORM:
        squares += x * x
    longer = ()
    for r in tl.static_range(ROWS):
        product = tiles[c * ROWS + r].to(tl.float32) * x
        if GROUPS > 1:
            product = _scaled(product, scales[r], group, N, WARPS, GROUPS)
        longer = longer + (products[r] + product,)
    return squares, longer


@triton.jit
def row_sums(
    x_ptr,
    rows,
    tiles,
    eps,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    scales,
    num_outputs,
    GROUPS: tl.constexpr,
):
    """Tuple of ``ROWS`` sums [num_warps] float32 over products with ``x``, or with its norm.

    ``scales``: pointers of ``scale_pointers``, to ``GROUPS`` rows of ``num_outputs``; (), 0 and 0
    without scales. No defaults: Triton 3.6 takes no tuple for one.
    """
    PER_CHUNK: tl.constexpr = CHUNK // _GROUP
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    NUM_TURNS: tl.constexpr = _num_turns(K // CHUNK, AHEAD)
    x_pointers = x_ptr + (tl.arange(0, WARPS) * 0)[:, None] + tl.arange(0, CHUNK)[None, :]
    squares = tl.zeros([WARPS, CHUNK], tl.float32)
    products = ()
    for _ in tl.static_range(ROWS):
        products = products + (tl.zeros([WARPS, CHUNK], tl.float32),)
    row_scales = ()
    if GROUPS == 1:
        for r in tl.static_range(ROWS):
            row_scales = row_scales + (tl.load(scales[r]),)
    if NUM_TURNS > 0:
        # Not unrolled: straight code would hold most of x in registers at once.
        for start in tl.range(0, NUM_TURNS * AHEAD * CHUNK, AHEAD * CHUNK, num_stages=1):
            later = ()
            for c in tl.static_range(AHEAD):
                for r in tl.static_range(ROWS):
                    later = later + (tl.load(rows[r] + start + (c + AHEAD) * CHUNK),)
                x = tl.load(x_pointers + start + c * CHUNK).to(tl.float32)
                squares, products = _add_chunk(
                    x,
                    tiles,
                    squares,
                    products,
                    scales,
                    start // _GROUP + c * PER_CHUNK,
                    num_outputs,
                    c,
                    WARPS,
                    ROWS,
                    NORM,
                    GROUPS,
                )
            tiles = later
    DONE: tl.constexpr = NUM_TURNS * AHEAD
    for c in tl.static_range(NUM_CHUNKS - DONE):
        if DONE + c + AHEAD < NUM_CHUNKS:
            for r in tl.static_range(ROWS):
                tiles = tiles + (load_chunk(rows[r], DONE + c + AHEAD, K),)
        x = load_chunk(x_pointers, DONE + c, K).to(tl.float32)
        squares, products = _add_chunk(
            x,
            tiles,
            squares,
            products,
            scales,
            (DONE + c) * PER_CHUNK,
            num_outputs,
            c,
            WARPS,
            ROWS,
            NORM,
            GROUPS,
        )
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)
    sums = ()
    for r in tl.static_range(ROWS):
        total = tl.sum(products[r], axis=1)
        if NORM:
            total = total * factor
        if GROUPS == 1:
            total = total * row_scales[r]
        sums = sums + (total,)
    return sums
