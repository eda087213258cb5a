"""Packing rounds nothing: unpacked by the embedding kernel, every format gives its weights back."""

import numpy as np
import pytest
import torch
from tests.worker.kernels.native_harness import (
    EVERY_INSTRUCTION_SET,
    GGUF_FORMATS,
    embed_all,
    quantised,
)

from mizzen_worker.kernels.packing import FORMATS, choose_format, pack_quantised


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_embedding_returns_the_stored_weights(name: str, instruction_set: str) -> None:
    matrix = quantised(name, rows=37, columns=256)
    rows = embed_all(matrix, instruction_set)
    np.testing.assert_allclose(rows, matrix.dequantise(), rtol=1e-6, atol=1e-6)


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dense_embedding_is_exact(dtype: torch.dtype, instruction_set: str) -> None:
    weights = torch.randn(21, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    rows = embed_all(weights, instruction_set)
    np.testing.assert_array_equal(rows, weights.float().numpy())


@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize(
    "names", [("Q4_0", "Q6_K"), ("Q4_K", "Q6_K"), ("Q4_0", "Q4_1"), ("Q8_0", "Q4_0")]
)
def test_parts_of_different_formats_share_one_matrix(
    names: tuple[str, str], instruction_set: str
) -> None:
    parts = [quantised(name, rows=19, columns=512) for name in names]
    rows = embed_all(parts, instruction_set)
    expected = np.concatenate([part.dequantise() for part in parts])
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "bits", "block", "size_bytes"),
    [("Q4_0", 4, 32, 18), ("Q4_1", 4, 32, 20), ("Q8_0", 8, 32, 34)],
)
def test_simple_formats_stay_as_small_as_in_the_file(
    name: str, bits: int, block: int, size_bytes: int
) -> None:
    matrix = quantised(name, rows=32, columns=64)
    data, chosen, _ = pack_quantised([matrix])
    assert (chosen.bits, chosen.block) == (bits, block)
    assert len(data) == 32 * 2 * size_bytes


def test_last_format_takes_scales_that_no_half_float_holds() -> None:
    matrix = quantised("Q6_K", rows=16, columns=256)
    assert choose_format([matrix, quantised("Q5_1", rows=16, columns=256)]) == FORMATS[-1]
