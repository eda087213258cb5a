"""Products of FP8 weights with one row equal those of the numbers they hold; rows and groups."""

from collections.abc import Callable

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import HAVE_HEAD_NORMS, qkv_size
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.fp8_matrix import (
    FP8,
    GROUP,
    dequantise,
    quantise_blocks,
    quantise_rows,
    require_scale,
)
from mizzen_worker.kernels.gpu.gemv import GemvTile, gated, linear
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.rotary_gemv import RotaryHeads, parts_of_head, rotary_linear
from mizzen_worker.kernels.reference.normed_linear import normed_linear
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.swiglu import swiglu
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct, fp8_gemv_tile, qkv_tile
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.rotary_config import RotaryConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
EPS = 1e-5
TOLERANCE = 2e-2 if torch.bfloat16 == DTYPE else 2e-5

Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
FORMS = pytest.mark.parametrize(
    ("quantise", "num_inputs"),
    [
        (quantise_rows, 272),
        (quantise_rows, 1040),
        (quantise_blocks, 128),
        (quantise_blocks, 896),
        (quantise_blocks, 1408),
    ],
)
TILES = pytest.mark.parametrize(
    "tile", [GemvTile(warps=4, rows=2, ahead=1), GemvTile(warps=8, rows=2, ahead=4)]
)


def matrix(rows: int, columns: int, quantise: Quantise) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of very different size."""
    torch.manual_seed(rows + columns)
    values = torch.randn(rows, columns) * columns**-0.5
    values *= 2.0 ** torch.randint(-2, 3, (rows, 1)) * 2.0 ** torch.randint(-2, 2, (columns,))
    found, scale = quantise(values)
    return found.to(DEVICE), scale.to(DEVICE)


def require_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    wide = expected.float()
    error = (found.float() - wide).norm() / wide.norm()
    assert float(error) < TOLERANCE


@FORMS
@TILES
def test_linear(quantise: Quantise, num_inputs: int, tile: GemvTile) -> None:
    weight, scale = matrix(150, num_inputs, quantise)
    x = torch.randn(num_inputs).to(DEVICE, DTYPE)
    bias, residual = torch.randn(150, device=DEVICE), torch.randn(150).to(DEVICE, DTYPE)
    output = torch.full((150,), torch.nan, device=DEVICE, dtype=DTYPE)
    linear(x, weight, bias, residual, output, norm_eps=EPS, tile=tile, launch=PLAIN, scale=scale)
    dense = dequantise(weight, scale, torch.float32)
    require_close(output, normed_linear(x[None].float(), dense, bias, EPS)[0] + residual.float())


@FORMS
@TILES
def test_gate_and_up(quantise: Quantise, num_inputs: int, tile: GemvTile) -> None:
    weight, scale = matrix(2 * 71, num_inputs, quantise)
    x = torch.randn(num_inputs).to(DEVICE, DTYPE)
    output = torch.full((71,), torch.nan, device=DEVICE, dtype=DTYPE)
    gated(x, weight, None, output, norm_eps=EPS, tile=tile, launch=PLAIN, scale=scale)
    normed = rms_norm(x[None].float(), torch.ones_like(x).float(), EPS)
    require_close(output, swiglu(normed, dequantise(weight, scale, torch.float32), None)[0])


@FORMS
@pytest.mark.parametrize("eps", [None, EPS])
def test_queries_keys_and_values(quantise: Quantise, num_inputs: int, eps: float | None) -> None:
    """As the same product of the dense matrix, which has its own test."""
    heads, kv_heads, head_dim, tile = 3, 2, 32, GemvTile(warps=8, rows=2, ahead=2)
    num_outputs = (heads + 2 * kv_heads) * head_dim
    weight, scale = matrix(num_outputs, num_inputs, quantise)
    x = torch.randn(num_inputs).to(DEVICE, DTYPE)
    norms = torch.rand(2, head_dim).to(DEVICE, DTYPE) + 0.5
    rotated = RotaryHeads(
        num_heads=heads,
        num_kv_heads=kv_heads,
        table=rotary_table(RotaryConfig(head_dim=head_dim, theta=100.0), 16).to(DEVICE),
        position=torch.tensor([7], device=DEVICE),
        query_norm=norms[0],
        key_norm=norms[1],
    )
    shape = (heads + 2 * kv_heads, parts_of_head(head_dim, tile))
    results = []
    exact = dequantise(weight, scale, torch.float32)
    for stored, factors, row in ((weight, scale, x), (exact, None, x.float())):
        output = torch.full((num_outputs,), torch.nan, device=DEVICE)
        squares = torch.full(shape, torch.nan, device=DEVICE)
        rotary_linear(
            row,
            stored,
            None,
            rotated,
            output,
            squares,
            norm_eps=eps,
            tile=tile,
            launch=PLAIN,
            scale=factors,
        )
        results.append((output, squares))
    for found, expected in zip(*results, strict=True):
        require_close(found, expected)


@pytest.mark.parametrize(("quantise", "limit"), [(quantise_rows, 0.03), (quantise_blocks, 0.03)])
def test_quantisation_error(quantise: Quantise, limit: float) -> None:
    """Of normal numbers: e4m3 rounds to within 1/16, 2.6 % in the mean square."""
    torch.manual_seed(0)
    values = torch.randn(300, 512)
    found = dequantise(*quantise(values), torch.float32)
    assert float((found - values).norm() / values.norm()) < limit
    largest = values.abs().amax(1, keepdim=True) if quantise is quantise_rows else 5.0
    assert bool(((found - values).abs() <= values.abs() / 16 + largest / 448 / 1024).all())
    zeros = torch.zeros(3, 256)
    assert torch.equal(dequantise(*quantise(zeros), torch.float32), zeros)


def test_blocks_are_of_rows_and_columns() -> None:
    values = torch.ones(200, 256)
    values[130, 3], values[5, 200] = 448.0, 896.0
    stored, scale = quantise_blocks(values)
    assert scale.shape == (2, 200)
    expected = torch.full((2, 200), 1 / 448)
    expected[0, 128:], expected[1, :128] = 1.0, 2.0
    torch.testing.assert_close(scale, expected)
    torch.testing.assert_close(dequantise(stored, scale, torch.float32), values)


def test_scales_that_do_not_fit_are_refused() -> None:
    stored, scale = quantise_rows(torch.ones(4, 256))
    assert require_scale(stored, scale) == 1
    assert require_scale(torch.ones(4, 256), None) == 0
    with pytest.raises(ValueError, match="without a scale"):
        require_scale(stored, None)
    with pytest.raises(ValueError, match="with a scale"):
        require_scale(torch.ones(4, 256), scale)
    for wrong in (scale.t().contiguous(), scale.double(), torch.ones(3, 4)):
        with pytest.raises(ValueError, match="is needed, contiguous"):
            require_scale(stored, wrong)
    with pytest.raises(ValueError, match="not whole blocks of 128"):
        quantise_blocks(torch.ones(4, 200))


def launch_all() -> None:
    """Llama-3.1-8B and Qwen3-0.6B."""
    launch = dependent()

    def stored(rows: int, columns: int, *, is_grouped: bool) -> dict[str, torch.Tensor]:
        groups = columns // GROUP if is_grouped else 1
        return {
            "weight": empty(rows, columns, dtype=FP8),
            "scale": empty(groups, rows, dtype=torch.float32),
        }

    for shape in benchmark_models.DENSE:
        hidden, inner, head_dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
        for is_grouped in (False, True):
            for inputs in (shape.num_heads * head_dim, inner):
                tile = fp8_gemv_tile(GemvProduct.ADD, hidden, inputs)
                out = empty(hidden)
                linear(
                    empty(inputs),
                    bias=None,
                    residual=out,
                    output=out,
                    norm_eps=None,
                    tile=tile,
                    launch=launch,
                    **stored(hidden, inputs, is_grouped=is_grouped),
                )
            gated(
                empty(hidden),
                bias=None,
                output=empty(inner),
                norm_eps=EPS,
                tile=fp8_gemv_tile(GemvProduct.GATE_UP, 2 * inner, hidden),
                launch=launch,
                **stored(2 * inner, hidden, is_grouped=is_grouped),
            )
            outputs = qkv_size(shape)
            tile = qkv_tile(outputs, hidden, head_dim)
            norm = empty(head_dim) if shape in HAVE_HEAD_NORMS else None
            rotary_linear(
                empty(hidden),
                bias=None,
                heads=RotaryHeads(
                    num_heads=shape.num_heads,
                    num_kv_heads=shape.num_kv_heads,
                    table=empty(4096, 2, head_dim // 2, dtype=torch.float32),
                    position=empty(1, dtype=torch.int64),
                    query_norm=norm,
                    key_norm=norm,
                ),
                output=empty(outputs),
                squares=empty(
                    outputs // head_dim, parts_of_head(head_dim, tile), dtype=torch.float32
                ),
                norm_eps=EPS,
                tile=tile,
                launch=launch,
                **stored(outputs, hidden, is_grouped=is_grouped),
            )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [89, 90])
def test_compiles(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        # Triton 3.6 spills nothing; 3.9 bounds registers for more warps, and spills a few bytes.
        assert record["stack"] <= 64, record
