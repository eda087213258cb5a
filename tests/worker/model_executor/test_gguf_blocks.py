"""Our block decoders against the gguf package's, over random bytes."""

import gguf
import numpy as np
import pytest

from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME


def random_blocks(name: str, rows: int, blocks: int) -> np.ndarray:
    block_format = FORMAT_BY_NAME[name]
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (rows, blocks, block_format.size_bytes), dtype=np.uint8)
    # Random float16 bits may be NaN or infinite: clear the top exponent bit of every d and dmin.
    offsets = {"Q2_K": (81, 83), "Q3_K": (109,), "Q6_K": (209,)}.get(name, (1, 3))
    if name in ("Q4_0", "Q5_0", "Q8_0"):
        offsets = (1,)
    for offset in offsets:
        raw[..., offset] &= 0xBF
    return raw


@pytest.mark.parametrize("name", sorted(FORMAT_BY_NAME))
def test_decoder_equals_gguf_package(name: str) -> None:
    raw = random_blocks(name, rows=5, blocks=3)
    expected = gguf.quants.dequantize(raw.reshape(5, -1), gguf.GGMLQuantizationType[name])
    matrix = FORMAT_BY_NAME[name].decode(raw)
    np.testing.assert_array_equal(matrix.dequantise(), expected)
    assert matrix.shape == expected.shape
    assert matrix.codes.max() < 2**matrix.code_bits


@pytest.mark.parametrize("name", sorted(FORMAT_BY_NAME))
def test_block_sizes_equal_gguf_package(name: str) -> None:
    columns, size_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (columns, size_bytes) == (FORMAT_BY_NAME[name].columns, FORMAT_BY_NAME[name].size_bytes)


def test_take_rows_keeps_codes_with_their_scales() -> None:
    matrix = FORMAT_BY_NAME["Q4_1"].decode(random_blocks("Q4_1", rows=4, blocks=2))
    order = np.array([2, 0, 3], dtype=np.int64)
    np.testing.assert_array_equal(matrix.take_rows(order).dequantise(), matrix.dequantise()[order])
