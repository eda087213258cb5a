"""Owns the device functions that find which tokens of one row a filter keeps; launches nothing.

A row of logits is seen in blocks of 128 ids whose maxima are known. Only blocks that can hold a
kept token are listed, and passes over the listed blocks narrow the value at which the filter cuts,
four times narrower each, until a single token or a group of equal ones is left. Every sum has a
fixed order, so a row's result depends on that row alone; whatever the values are, loops end.

``logits``, ``listed`` and ``sums`` point to the row's own values. Weights: ``token_weights.py``.
"""

import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.launching import IS_INTERPRETED
from mizzen_worker.kernels.gpu.token_weights import BLOCK, locate, weigh, weigh_kept

CHUNK = tl.constexpr(32)
"""Blocks that a pass loads at once."""
_LANES = tl.constexpr(32)
_EVEN_STEPS = tl.constexpr(6)
"""A search divides by value first, then by the bits of float32: that always comes to an end."""
_MOST_STEPS = tl.constexpr(32)
_MOST_HALVINGS = tl.constexpr(24)
_MOST = tl.constexpr(1 << 30)
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)
"""Interpreted, a reduction of several tensors at once would take a Python call per element."""


@triton.jit
def ordered(value):
    """float32 as int32 of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_ordered(key):
    """Inverse of ``ordered``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def just_below(value):
    """The next smaller float32; below both zeros what is smaller than both; -inf stays."""
    key = tl.where(value == 0.0, -2, ordered(value) - 1)
    return tl.where(value > -float("inf"), from_ordered(key), value)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_sixes(a, b, c, d, e, f, g, h, i, j, k, m):
    return a + g, b + h, c + i, d + j, e + k, f + m


@triton.jit
def _sum_two(a, b):
    if _IS_INTERPRETED:
        return tl.sum(a, 0), tl.sum(b, 0)
    else:  # noqa: RET505 - Triton compiles both where a return is not the last statement
        return tl.reduce((a, b), 0, _add_pairs)


@triton.jit
def _sum_six(a, b, c, d, e, f):
    if _IS_INTERPRETED:
        return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0), tl.sum(e, 0), tl.sum(f, 0)
    else:  # noqa: RET505 - as above
        return tl.reduce((a, b, c, d, e, f), 0, _add_sixes)


@triton.jit
def lowest_kept(
    maxima, relative, largest, temperature, total, top_k, has_k, top_p, min_p, vocab_size
):
    """A logit below which nothing is kept, from the maxima of all blocks: cheap, not tight.

    ``relative``: weights of the maxima; ``total``: of all tokens. Each block that reaches a value
    has a token that does, so as many blocks as top-k, or maxima of as much mass as top-p, suffice.
    """
    slack = 0.01 * temperature + 1e-6 * tl.abs(largest)
    is_mass = (top_p < 1.0) & (has_k == 0)
    lower = tl.full((), -float("inf"), tl.float32)
    if (has_k != 0) | is_mass:
        amounts = tl.where(has_k != 0, 1.0, relative)
        needed = tl.where(has_k != 0, top_k.to(tl.float32), top_p * total * 1.00001)
        limit = tl.where(has_k != 0, (top_k + top_k // 8 + CHUNK - 1) // CHUNK * CHUNK, CHUNK)
        # What top-p leaves out is less than all tokens below this share could have together.
        share = (1.0 - top_p) * total / vocab_size
        least = largest + temperature * 0.6931472 * tl.log2(share) - slack
        smallest = tl.min(tl.where(maxima > -float("inf"), maxima, float("inf")), 0)
        low = tl.where(has_k != 0, smallest, least)
        high = largest
        is_above = maxima >= low
        amount, count = _sum_two(tl.where(is_above, amounts, 0.0), is_above.to(tl.int32))
        is_enough = amount >= needed
        step = tl.full((), 0, tl.int32)
        is_going = (is_enough & (count > limit)).to(tl.int32)
        while is_going != 0:
            middle = low * 0.5 + high * 0.5
            is_above = maxima >= middle
            amount, here = _sum_two(tl.where(is_above, amounts, 0.0), is_above.to(tl.int32))
            low = tl.where(amount >= needed, middle, low)
            count = tl.where(amount >= needed, here, count)
            high = tl.where(amount >= needed, high, middle)
            step += 1
            is_going = ((count > limit) & (low < high) & (step < _MOST_HALVINGS)).to(tl.int32)
        lower = tl.where(is_enough | is_mass, low, -float("inf"))
    # Where top-p follows a top-k, the mass it refers to includes tokens that min-p drops.
    if (min_p > 0.0) & ((has_k == 0) | (top_p >= 1.0)):
        least_of_min_p = largest + temperature * 0.6931472 * tl.log2(min_p) - slack
        lower = tl.maximum(lower, least_of_min_p)
    return lower


@triton.jit
def list_blocks(maxima, lower, listed, num_blocks, N: tl.constexpr):
    """Write the blocks of [N] whose maximum reaches ``lower``, ascending; gives their number."""
    index = tl.arange(0, N)
    is_listed = (maxima >= lower) & (index < num_blocks)
    place = tl.cumsum(is_listed.to(tl.int32), 0) - 1
    tl.store(listed + place, index, mask=is_listed)
    tl.debug_barrier()
    return tl.sum(is_listed.to(tl.int32), 0)


@triton.jit
def load_listed(logits, listed, start, num_listed, vocab_size):
    """[CHUNK] places in the list and blocks; [CHUNK, BLOCK] ids and logits, beyond: -inf."""
    place = start + tl.arange(0, CHUNK)
    block = tl.load(listed + place, mask=place < num_listed, other=0)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_there = (place < num_listed)[:, None] & (column < vocab_size)
    value = tl.load(logits + column, mask=is_there, other=-float("inf"))
    return place, block, column, value


@triton.jit
def _by_lane(amount):
    """Sums of four neighbours, which lie in one thread."""
    return tl.sum(tl.reshape(amount, (CHUNK * _LANES, BLOCK // _LANES)), 1)


@triton.jit
def _sum_above(
    logits,
    listed,
    num_listed,
    vocab_size,
    largest,
    scale,
    first,
    second,
    third,
    STAGES: tl.constexpr,
):
    """How many tokens lie above each of three values, and their weight."""
    count_1 = tl.zeros((CHUNK * _LANES,), tl.int32)
    count_2 = tl.zeros((CHUNK * _LANES,), tl.int32)
    count_3 = tl.zeros((CHUNK * _LANES,), tl.int32)
    mass_1 = tl.zeros((CHUNK * _LANES,), tl.float32)
    mass_2 = tl.zeros((CHUNK * _LANES,), tl.float32)
    mass_3 = tl.zeros((CHUNK * _LANES,), tl.float32)
    for start in tl.range(0, num_listed, CHUNK, num_stages=STAGES):
        _place, _block, _column, value = load_listed(logits, listed, start, num_listed, vocab_size)
        weight = weigh(value, largest, scale)
        count_1 += _by_lane((value > first).to(tl.int32))
        count_2 += _by_lane((value > second).to(tl.int32))
        count_3 += _by_lane((value > third).to(tl.int32))
        mass_1 += _by_lane(tl.where(value > first, weight, 0.0))
        mass_2 += _by_lane(tl.where(value > second, weight, 0.0))
        mass_3 += _by_lane(tl.where(value > third, weight, 0.0))
    return _sum_six(count_1, count_2, count_3, mass_1, mass_2, mass_3)


@triton.jit
def _between(low, high, part, parts, is_even):
    """A value from ``low`` to ``high``: part / parts of the way, by value or by bits."""
    even = low + (high - low) * (part.to(tl.float32) / parts.to(tl.float32))
    even = tl.minimum(tl.maximum(even, low), high)
    key = ordered(low).to(tl.int64)
    width = ordered(high).to(tl.int64) - key
    by_bits = from_ordered((key + width * part // parts).to(tl.int32))
    return tl.where(is_even, even, by_bits)


@triton.jit
def find_cut(
    logits,
    listed,
    num_listed,
    vocab_size,
    largest,
    scale,
    lowest,
    needed,
    IS_MASS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Narrow (low, high] to the last kept token: above ``low`` lies enough, above ``high`` not.

    Enough is an amount of at least ``needed``: int32 tokens, or float64 weight of them. Returns
    low, high and, of tokens above each, numbers and weights. It ends with one token between the
    two, or with one value; with low = high = ``lowest`` where not enough lies above that.
    """
    low = lowest
    high = largest
    count_low = tl.full((), _MOST, tl.int32)
    count_high = tl.full((), 0, tl.int32)
    mass_low = tl.full((), 0.0, tl.float32)
    mass_high = tl.full((), 0.0, tl.float32)
    step = tl.full((), 0, tl.int32)
    is_going = tl.full((), 1, tl.int32)
    while is_going != 0:
        # The first pass looks at the lower end itself.
        skipped = (step == 0).to(tl.int32)
        is_even = (step < _EVEN_STEPS) & (low > -float("inf"))
        first = _between(low, high, 1 - skipped, 4 - skipped, is_even)
        second = _between(low, high, 2 - skipped, 4 - skipped, is_even)
        third = _between(low, high, 3 - skipped, 4 - skipped, is_even)
        count_1, count_2, count_3, mass_1, mass_2, mass_3 = _sum_above(
            logits, listed, num_listed, vocab_size, largest, scale, first, second, third, STAGES
        )
        if IS_MASS:
            is_enough_1 = mass_1.to(tl.float64) >= needed
            is_enough_2 = mass_2.to(tl.float64) >= needed
            is_enough_3 = mass_3.to(tl.float64) >= needed
        else:
            is_enough_1 = count_1 >= needed
            is_enough_2 = count_2 >= needed
            is_enough_3 = count_3 >= needed
        count_low = tl.where(is_enough_1, count_1, count_low)
        count_low = tl.where(is_enough_2, count_2, count_low)
        count_low = tl.where(is_enough_3, count_3, count_low)
        mass_low = tl.where(is_enough_1, mass_1, mass_low)
        mass_low = tl.where(is_enough_2, mass_2, mass_low)
        mass_low = tl.where(is_enough_3, mass_3, mass_low)
        low = tl.where(is_enough_1, first, low)
        low = tl.where(is_enough_2, second, low)
        low = tl.where(is_enough_3, third, low)
        count_high = tl.where(is_enough_3, count_high, count_3)
        count_high = tl.where(is_enough_2, count_high, count_2)
        count_high = tl.where(is_enough_1, count_high, count_1)
        mass_high = tl.where(is_enough_3, mass_high, mass_3)
        mass_high = tl.where(is_enough_2, mass_high, mass_2)
        mass_high = tl.where(is_enough_1, mass_high, mass_1)
        high = tl.where(is_enough_3, high, third)
        high = tl.where(is_enough_2, high, second)
        high = tl.where(is_enough_1, high, first)
        step += 1
        is_wide = ordered(high).to(tl.int64) - ordered(low).to(tl.int64) > 1
        is_many = count_low - count_high > 1
        is_going = (is_wide & is_many & (step < _MOST_STEPS)).to(tl.int32)
    return low, high, count_low, count_high, mass_low, mass_high


@triton.jit
def sum_kept(
    logits,
    listed,
    num_listed,
    num_blocks,
    vocab_size,
    sums,
    largest,
    scale,
    cut,
    last_id,
    least_weight,
    IS_TIES: tl.constexpr,
    N: tl.constexpr,
):
    """Kept weight of every block, or its number of tokens equal to ``cut``: [N] float64.

    Overwrites the row's ``sums``.
    """
    index = tl.arange(0, N)
    tl.debug_barrier()
    tl.store(sums + index, tl.zeros((N,), tl.float32), mask=index < num_blocks)
    tl.debug_barrier()
    for start in range(0, num_listed, CHUNK):
        place, block, column, value = load_listed(logits, listed, start, num_listed, vocab_size)
        if IS_TIES:
            amount = (value == cut).to(tl.float32)
            # Beyond the vocabulary, too, there is minus infinity.
            amount = tl.where(column < vocab_size, amount, 0.0)
        else:
            amount = weigh_kept(value, column, largest, scale, cut, last_id, least_weight)
        tl.store(sums + block, tl.sum(amount, 1), mask=place < num_listed)
    tl.debug_barrier()
    return tl.load(sums + index, mask=index < num_blocks, other=0.0).to(tl.float64)


@triton.jit
def find_tie(
    logits, listed, num_listed, num_blocks, vocab_size, sums, cut, number, N: tl.constexpr
):
    """Id of the ``number``-th token that equals ``cut``, in the order of ids; from 1."""
    ties = sum_kept(
        logits,
        listed,
        num_listed,
        num_blocks,
        vocab_size,
        sums,
        cut,
        1.0,
        cut,
        0,
        0.0,
        IS_TIES=True,
        N=N,
    )
    target = number.to(tl.float64) - 1.0
    block, before = locate(ties, 0.0, target, N)
    column = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + column, mask=column < vocab_size, other=0.0)
    is_tie = ((value == cut) & (column < vocab_size)).to(tl.float64)
    place, _before = locate(is_tie, before, target, BLOCK)
    return block * BLOCK + place


@triton.jit
def choose_cut(
    logits,
    listed,
    num_listed,
    vocab_size,
    largest,
    scale,
    lower,
    total,
    top_k,
    has_k,
    top_p,
    STAGES: tl.constexpr,
):
    """Where top-k and top-p cut: tokens above the value stay, and so many of those that equal it.

    top-p keeps a token while the weight of those before it is below its share of what top-k left,
    or of ``total``. The best token always stays.
    """
    cut = just_below(lower)
    ties = tl.full((), 0, tl.int32)
    lowest = cut
    mass = total
    if has_k != 0:
        low, high, count_low, count_high, mass_low, mass_high = find_cut(
            logits,
            listed,
            num_listed,
            vocab_size,
            largest,
            scale,
            lowest,
            top_k,
            IS_MASS=False,
            STAGES=STAGES,
        )
        room = top_k - count_high
        is_whole = (low == high) | (count_low - count_high <= room)
        above = tl.where(low == high, mass_high, mass_low)
        some = mass_high + room.to(tl.float32) * weigh(high, largest, scale)
        mass = tl.where(is_whole, above, some)
        cut = tl.where(is_whole, low, high)
        ties = tl.where(is_whole, 0, room)
        lowest = low
    if top_p < 1.0:
        # Whole numbers of equal tokens come out as in float64 elsewhere.
        needed = tl.maximum(top_p.to(tl.float64) * mass.to(tl.float64), 1e-38)
        low, high, count_low, count_high, mass_low, mass_high = find_cut(
            logits,
            listed,
            num_listed,
            vocab_size,
            largest,
            scale,
            lowest,
            needed,
            IS_MASS=True,
            STAGES=STAGES,
        )
        weight = weigh(high, largest, scale).to(tl.float64)
        fitting = tl.ceil((needed - mass_high.to(tl.float64)) / weight)
        room = tl.minimum(tl.maximum(fitting, 1.0), 1e9).to(tl.int32)
        room = tl.where((ties > 0) & (high == cut), tl.minimum(room, ties), room)
        is_whole = count_low - count_high <= room
        is_cut = low < high
        cut = tl.where(is_cut, tl.where(is_whole, low, high), cut)
        ties = tl.where(is_cut, tl.where(is_whole, 0, room), ties)
    return cut, ties
