"""Linear layers of the native kernels against their meaning in plain torch.

Tolerance: activations are rounded to 1/65024 of their block's largest magnitude, so an output may
be off by that share of the sum of |weight| * largest; a fifth of the bound is asked for.
"""

import numpy as np
import pytest
import torch
from tests.worker.kernels.native_harness import (
    EPS,
    EVERY_INSTRUCTION_SET,
    GGUF_FORMATS,
    all_rows,
    finish,
    plain_head,
    quantised,
    recorder_of,
)

from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.layers.native_operations import NativeWeightPreparer
from mizzen_worker.layers.operations import StoredMatrix

ROW_COUNTS = (1, 2, 3, 5, 8, 13, 33)


def dense_of(matrix: StoredMatrix) -> torch.Tensor:
    is_quantised = isinstance(matrix, QuantisedMatrix)
    return torch.from_numpy(matrix.dequantise()) if is_quantised else matrix.float()


def run_norm_head(
    matrix: StoredMatrix, hidden: torch.Tensor, norm: torch.Tensor, instruction_set: str
) -> torch.Tensor:
    prepare = NativeWeightPreparer()
    recorder = recorder_of()
    value = recorder.select_sampled(recorder.embed(prepare.linear([hidden])))
    recorder.norm_head(value, prepare.norm(norm), prepare.linear([matrix]))
    return finish(recorder, instruction_set).run(all_rows(len(hidden)))


def check_norm_head(matrix: StoredMatrix, num_rows: int, instruction_set: str) -> None:
    columns = int(matrix.shape[1])
    generator = torch.Generator().manual_seed(num_rows)
    hidden = torch.randn(num_rows, columns, generator=generator) * 3
    norm = torch.rand(columns, generator=generator) + 0.5
    found = run_norm_head(matrix, hidden, norm, instruction_set)
    normed = rms_norm(hidden, norm, EPS).double()
    weights = dense_of(matrix).double()
    expected = normed @ weights.T
    bound = (normed.abs().amax(-1, keepdim=True) * weights.abs().sum(-1)) / 65024
    assert found.shape == expected.shape
    assert bool(((found - expected).abs() <= bound * 0.2 + 1e-6).all())


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_quantised_head_equals_reference(name: str, instruction_set: str) -> None:
    matrix = quantised(name, rows=45, columns=512)
    for num_rows in ROW_COUNTS:
        check_norm_head(matrix, num_rows, instruction_set)


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "columns"), [(1, 7), (16, 16), (50, 61)])
def test_dense_head_equals_reference(
    dtype: torch.dtype, outputs: int, columns: int, instruction_set: str
) -> None:
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(outputs, columns, generator=generator).to(dtype)
    for num_rows in ROW_COUNTS:
        check_norm_head(matrix, num_rows, instruction_set)


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("inner", [32, 96])
def test_gated_layer_with_residual_equals_reference(inner: int, instruction_set: str) -> None:
    columns = 64
    gate, up = (quantised("Q4_1", inner, columns, seed) for seed in (1, 2))
    down = quantised("Q8_0", columns, inner, seed=3)
    for num_rows in ROW_COUNTS:
        hidden = torch.randn(num_rows, columns, generator=torch.Generator().manual_seed(4))
        norm = torch.ones(columns)
        prepare = NativeWeightPreparer()
        recorder = recorder_of()
        value = recorder.select_sampled(recorder.embed(prepare.linear([hidden])))
        gated = recorder.norm_gate_up_silu(value, prepare.normed(prepare.gate_up(gate, up), norm))
        plain_head(recorder, recorder.linear_add(gated, prepare.linear([down]), value), columns)
        found = finish(recorder, instruction_set).run(all_rows(num_rows))
        normed = rms_norm(hidden, norm, EPS)
        gates = torch.nn.functional.silu(normed @ dense_of(gate).T)
        expected = hidden + (gates * (normed @ dense_of(up).T)) @ dense_of(down).T
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("name", [*GGUF_FORMATS, "float32", "bfloat16", "float16"])
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str, instruction_set: str) -> None:
    generator = torch.Generator().manual_seed(9)
    matrix: StoredMatrix
    if name in GGUF_FORMATS:
        matrix = quantised(name, rows=48, columns=512)
    else:
        matrix = torch.randn(48, 512, generator=generator).to(getattr(torch, name))
    hidden = torch.randn(39, 512, generator=generator)
    norm = torch.rand(512, generator=generator)
    together = run_norm_head(matrix, hidden, norm, instruction_set)
    for count in (1, 2, 3, 5, 7, 13, 38):
        for first in (0, 39 - count):
            part = slice(first, first + count)
            alone = run_norm_head(matrix, hidden[part], norm, instruction_set)
            assert torch.equal(alone, together[part]), (first, count)


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("extreme", [0.0, 1e-30, 1e30])
def test_extreme_activations_stay_finite(extreme: float, instruction_set: str) -> None:
    matrix = quantised("Q4_0", rows=16, columns=64)
    hidden = torch.full((2, 64), extreme)
    hidden[1, 3] = -extreme
    recorder = recorder_of()
    prepare = NativeWeightPreparer()
    value = recorder.select_sampled(recorder.embed(prepare.linear([hidden])))
    recorder._linear(value, prepare.linear([matrix]), -1)
    found = finish(recorder, instruction_set).run(all_rows(2)).numpy()
    expected = hidden.double().numpy() @ matrix.dequantise().astype(np.float64).T
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=abs(extreme) * 1e-4)
