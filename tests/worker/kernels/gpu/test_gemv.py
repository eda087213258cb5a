"""Products with one row equal their meaning: odd sizes, every epilogue, uneven tiles."""

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import HAVE_HEAD_NORMS, qkv_size
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.embed_row import embed_row
from mizzen_worker.kernels.gpu.gemv import GemvTile, gated, linear
from mizzen_worker.kernels.gpu.head_gemv import best_of_blocks
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.rotary_gemv import RotaryHeads, parts_of_head, rotary_linear
from mizzen_worker.kernels.reference.normed_linear import normed_linear
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary import rotate
from mizzen_worker.kernels.reference.swiglu import swiglu
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct, gemv_tile, qkv_tile
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.rotary_config import RotaryConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
EPS = 1e-5
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: the result is rounded once."""

EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def random_matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(rows, columns) * columns**-0.5).to(DEVICE, dtype)


def poisoned(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((size,), float("nan"), device=DEVICE, dtype=dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@EVERY_DTYPE
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "tile"),
    [
        (16, 16, GemvTile(warps=4, rows=1, ahead=4)),
        (7, 256, GemvTile(warps=8, rows=2, ahead=1)),
        (33, 272, GemvTile(warps=4, rows=3, ahead=2)),
        (40, 1040, GemvTile(warps=4, rows=2, ahead=1)),  # turns of a loop, then a short chunk
        (5, 43, GemvTile(warps=4, rows=1, ahead=4)),
        (24, 1536, GemvTile(warps=8, rows=1, ahead=2)),
        (20, 1792, GemvTile(warps=4, rows=1, ahead=3)),
    ],
)
def test_linear_with_every_epilogue(
    num_outputs: int, num_inputs: int, tile: GemvTile, dtype: torch.dtype
) -> None:
    torch.manual_seed(num_outputs)
    x = torch.randn(num_inputs).to(DEVICE, dtype)
    weight = random_matrix(num_outputs, num_inputs, dtype)
    bias = torch.randn(num_outputs, device=DEVICE)
    residual = torch.randn(num_outputs).to(DEVICE, dtype)
    for eps, has_bias, has_residual in [
        (None, False, False),
        (EPS, True, False),
        (None, True, True),
    ]:
        output = poisoned(num_outputs, dtype)
        given_bias, given_residual = bias if has_bias else None, residual if has_residual else None
        linear(x, weight, given_bias, given_residual, output, norm_eps=eps, tile=tile, launch=PLAIN)
        expected = normed_linear(x[None], weight, given_bias, eps)[0]
        assert_close(output, expected + residual.float() * has_residual, dtype)


def test_residual_may_be_the_output() -> None:
    x, weight = torch.randn(64, device=DEVICE), random_matrix(24, 64, torch.float32)
    hidden = torch.randn(24, device=DEVICE)
    expected = hidden + weight @ x
    tile = GemvTile(warps=8, rows=1, ahead=1)
    linear(x, weight, None, hidden, hidden, norm_eps=None, tile=tile, launch=PLAIN)
    assert_close(hidden, expected, torch.float32)


@EVERY_DTYPE
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "tile"),
    [(13, 48, GemvTile(warps=4, rows=2, ahead=4)), (18, 784, GemvTile(warps=4, rows=4, ahead=1))],
)
def test_gate_and_up_rows_alternate(
    num_outputs: int, num_inputs: int, tile: GemvTile, *, has_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(num_outputs)
    x = torch.randn(num_inputs).to(DEVICE, dtype)
    weight = random_matrix(2 * num_outputs, num_inputs, dtype)
    bias = torch.randn(2 * num_outputs, device=DEVICE) if has_bias else None
    output = poisoned(num_outputs, dtype)
    gated(x, weight, bias, output, norm_eps=EPS, tile=tile, launch=PLAIN)
    normed = rms_norm(x[None].float(), torch.ones_like(x).float(), EPS)
    assert_close(output, swiglu(normed, weight, bias)[0], dtype)


@EVERY_DTYPE
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "tile"),
    [
        (3, 1, 16, GemvTile(warps=8, rows=2, ahead=4)),
        (2, 2, 48, GemvTile(warps=4, rows=4, ahead=1)),
        (2, 1, 64, GemvTile(warps=4, rows=8, ahead=1)),
    ],
)
def test_queries_and_keys_are_rotated(
    heads: int,
    kv_heads: int,
    head_dim: int,
    tile: GemvTile,
    *,
    has_norms: bool,
    has_bias: bool,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(head_dim)
    num_inputs, num_all = 48, heads + 2 * kv_heads
    x = torch.randn(num_inputs).to(DEVICE, dtype)
    weight = random_matrix(num_all * head_dim, num_inputs, dtype)
    bias = torch.randn(num_all * head_dim, device=DEVICE) if has_bias else None
    table = rotary_table(RotaryConfig(head_dim=head_dim, theta=1e4), 40).to(DEVICE)
    norms = [(torch.rand(head_dim) + 0.5).to(DEVICE, dtype) for _ in range(2)]
    for position in (39, 41):  # the second is past the table, as of a masked row
        rotary = RotaryHeads(
            num_heads=heads,
            num_kv_heads=kv_heads,
            table=table,
            position=torch.tensor([position], device=DEVICE),
            query_norm=norms[0] if has_norms else None,
            key_norm=norms[1] if has_norms else None,
        )
        output = poisoned(num_all * head_dim, dtype)
        squares = torch.full((num_all, parts_of_head(head_dim, tile)), float("nan"), device=DEVICE)
        rotary_linear(
            x, weight, bias, rotary, output, squares, norm_eps=EPS, tile=tile, launch=PLAIN
        )
        projected = normed_linear(x[None], weight, bias, EPS).view(1, num_all, head_dim)
        expected = projected.clone()
        if has_norms:
            assert_close(squares.sum(1), projected[0].pow(2).sum(1), torch.float32)
            expected[:, :heads] *= norms[0].float()
            expected[:, heads : heads + kv_heads] *= norms[1].float()
        rotated = rotate(expected[:, : heads + kv_heads], table[[min(position, 39)]])
        expected[:, : heads + kv_heads] = rotated
        assert_close(output, expected.flatten(), dtype)


@EVERY_DTYPE
@pytest.mark.parametrize("num_outputs", [32, 45])
def test_best_of_blocks(num_outputs: int, dtype: torch.dtype) -> None:
    tile = GemvTile(warps=4, rows=2, ahead=1)
    torch.manual_seed(num_outputs)
    x = torch.randn(32).to(DEVICE, dtype)
    weight = random_matrix(num_outputs, 32, dtype)
    weight[3] = weight[1]  # equal logits: the lower id
    weight[17] = float("nan")
    bias = torch.zeros(num_outputs, device=DEVICE)
    bias[[1, 3]] = 100.0
    bias[24:32] = -50.0  # all negative
    num_blocks = -(-num_outputs // 8)
    values = poisoned(num_blocks, torch.float32)
    indices = torch.full((num_blocks,), -7, dtype=torch.int32, device=DEVICE)
    best_of_blocks(x, weight, bias, values, indices, tile=tile, launch=PLAIN)
    logits = normed_linear(x[None], weight, bias, None)[0]
    for block in range(num_blocks):
        part = logits[block * 8 : block * 8 + 8]
        if part.isnan().any():
            assert values[block].isnan()
            assert block == 2
        else:
            assert_close(values[block], part.max(), torch.float32)
            assert int(indices[block]) == block * 8 + int(part.argmax())
    assert int(indices[0]) == 1


def test_best_of_equal_signed_zeros_is_the_first() -> None:
    tile = GemvTile(warps=4, rows=1, ahead=1)
    values = poisoned(1, torch.float32)
    indices = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    weight = torch.zeros(4, 16, device=DEVICE)
    bias = torch.tensor([-1.0, -0.0, 0.0, -2.0], device=DEVICE)
    x = torch.full((16,), -1.0, device=DEVICE)
    best_of_blocks(x, weight, bias, values, indices, tile=tile, launch=PLAIN)
    assert (float(values), int(indices)) == (0.0, 1)


@EVERY_DTYPE
def test_embedding_row(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    embedding = torch.randn(10, 48).to(DEVICE, dtype)
    for token, row in ((4, 4), (-2, 0), (10, 9)):  # a masked row's token may be no token
        output = poisoned(48, dtype)
        embed_row(torch.tensor([token], device=DEVICE), embedding, output, launch=PLAIN)
        torch.testing.assert_close(output, embedding[row], rtol=0, atol=0)


def test_wrong_operands_are_refused() -> None:
    tile = GemvTile(warps=4, rows=1, ahead=1)
    x, weight = torch.randn(32, device=DEVICE), torch.randn(8, 24, device=DEVICE)
    output = torch.empty(8, device=DEVICE)
    with pytest.raises(ValueError, match="one row of as many"):
        linear(x, weight, None, None, output, norm_eps=None, tile=tile, launch=PLAIN)
    with pytest.raises(ValueError, match="contiguous"):
        linear(
            torch.randn(16, device=DEVICE),
            torch.randn(16, 8, device=DEVICE).t(),
            None,
            None,
            output,
            norm_eps=None,
            tile=tile,
            launch=PLAIN,
        )
    with pytest.raises(ValueError, match="head_dim 24"):
        parts_of_head(24, GemvTile(warps=8, rows=2, ahead=1))


def launch_all() -> None:
    """Every product of the models that we measure, with the tiles that are shipped."""

    launch = dependent()
    for shape in benchmark_models.ALL:
        hidden, vocabulary, head_dim = shape.hidden_size, shape.vocab_size, shape.head_dim
        inner = 0 if shape.experts else shape.intermediate_size
        num_rows = qkv_size(shape)
        tile = qkv_tile(num_rows, hidden, head_dim)
        norm = empty(head_dim) if shape in HAVE_HEAD_NORMS else None
        rotary = RotaryHeads(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            table=empty(40_960, 2, head_dim // 2, dtype=torch.float32),
            position=empty(1, dtype=torch.int64),
            query_norm=norm,
            key_norm=norm,
        )
        squares = empty(num_rows // head_dim, parts_of_head(head_dim, tile), dtype=torch.float32)
        x, output = empty(hidden), empty(num_rows)
        weight = empty(num_rows, hidden)
        rotary_linear(
            x, weight, None, rotary, output, squares, norm_eps=EPS, tile=tile, launch=launch
        )
        for num_inputs in filter(None, (shape.num_heads * head_dim, inner)):
            linear(
                empty(num_inputs),
                empty(hidden, num_inputs),
                None,
                x,
                x,
                norm_eps=None,
                tile=gemv_tile(GemvProduct.ADD, hidden, num_inputs),
                launch=launch,
            )
        if inner:
            tile = gemv_tile(GemvProduct.GATE_UP, 2 * inner, hidden)
            weight = empty(2 * inner, hidden)
            gated(x, weight, None, empty(inner), norm_eps=EPS, tile=tile, launch=launch)
        tile = gemv_tile(GemvProduct.HEAD, vocabulary, hidden)
        weight, logits = empty(vocabulary, hidden), empty(vocabulary, dtype=torch.float32)
        linear(x, weight, None, None, logits, norm_eps=None, tile=tile, launch=launch)
        num_blocks = -(-vocabulary // (tile.warps * tile.rows))
        values = empty(num_blocks, dtype=torch.float32)
        indices = empty(num_blocks, dtype=torch.int32)
        best_of_blocks(x, weight, None, values, indices, tile=tile, launch=launch)
        embed_row(empty(1, dtype=torch.int64), weight, x, launch={"PDL": launch["PDL"]})


@pytest.mark.slow
@pytest.mark.parametrize("capability", [90, 89, 80])
def test_compiles_almost_without_spilling(capability: int) -> None:
    """The assembler may give up a few bytes to stay below a number of registers."""
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] <= 16, record


@pytest.mark.gpu
def test_dependent_launch_equals_plain() -> None:
    torch.manual_seed(1)
    x = torch.randn(1024, device=DEVICE, dtype=torch.bfloat16)
    weight = random_matrix(1024, 1024, torch.bfloat16)
    tile = GemvTile(warps=8, rows=1, ahead=4)
    results = []
    for launch in (PLAIN, dependent()):
        hidden = x.clone()
        for _ in range(20):
            output = torch.empty_like(hidden)
            linear(hidden, weight, None, hidden, output, norm_eps=EPS, tile=tile, launch=launch)
            hidden = output
        results.append(hidden)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
