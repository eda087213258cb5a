"""Small programs around single operations, so that each native kernel meets its reference."""

from collections.abc import Sequence

import gguf
import numpy as np
import pytest
import torch

from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.layers.native_operations import (
    NativeRecorder,
    NativeSettings,
    NativeStepProgram,
    NativeWeightPreparer,
)
from mizzen_worker.layers.operations import StoredMatrix
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.weights.gguf_blocks import FORMAT_BY_NAME

GGUF_FORMATS = sorted(FORMAT_BY_NAME)

INSTRUCTION_SET_PARAMS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name not in INSTRUCTION_SETS,
            reason=f"missing: the native extension with {name} (make setup builds it)",
        ),
    )
    for name in ("avx512", "avx2", "portable")
]

EVERY_INSTRUCTION_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SET_PARAMS)

EPS = 1e-5


def quantised(name: str, rows: int, columns: int, seed: int = 5) -> QuantisedMatrix:
    """A random matrix with plausible scales in a GGUF format."""
    block_format = FORMAT_BY_NAME[name]
    blocks = columns // block_format.columns
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, blocks, block_format.size_bytes), dtype=np.uint8)
    offsets = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
    k_quants = {"Q4_K": (0, 2), "Q5_K": (0, 2)}
    for offset in (offsets | k_quants).get(name, (0,)):
        scales = rng.uniform(0.001, 0.02, (rows, blocks, 1)).astype(np.float16)
        raw[..., offset : offset + 2] = scales.view(np.uint8)
    matrix = block_format.decode(raw)
    expected = gguf.quants.dequantize(raw.reshape(rows, -1), gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(matrix.dequantise(), expected)
    return matrix


def tiny_pool() -> DevicePool:
    shape = PoolShape(num_layers=1, num_pages=1, page_size=1, num_kv_heads=1, head_dim=16)
    return DevicePool(shape, torch.float32, torch.device("cpu"))


def all_rows(num_tokens: int) -> ForwardBatch:
    """Tokens 0, 1, 2, ... as one row, every one of them sampled."""
    index = torch.arange(num_tokens)
    return ForwardBatch(
        token_ids=index,
        positions=index,
        kv_locations=torch.zeros(num_tokens, dtype=torch.int64),
        page_table=torch.zeros(1, num_tokens, dtype=torch.int32),
        row_slots=torch.zeros(1, dtype=torch.int64),
        sampled_tokens=index,
        device_row_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
        device_row_lengths=torch.tensor([num_tokens], dtype=torch.int32),
        row_starts=np.array([0, num_tokens], dtype=np.int32),
        row_lengths=np.array([num_tokens], dtype=np.int32),
        page_size=1,
    )


def finish(
    recorder: NativeRecorder, instruction_set: str, num_threads: int = 2
) -> NativeStepProgram:
    settings = NativeSettings(
        instruction_set=instruction_set,
        num_threads=2,
        num_heads=1,
        table=torch.zeros(1),
        eps=EPS,
    )
    return NativeStepProgram(recorder, tiny_pool(), settings)


def recorder_of() -> NativeRecorder:
    return NativeRecorder(tiny_pool(), 1)


def plain_head(recorder: NativeRecorder, value: object, size: int) -> None:
    """End with an identity head without norm, so that a value comes out as logits."""
    identity = NativeWeightPreparer().linear([torch.eye(size)])
    recorder._linear(value, identity, -1)


def embed_all(parts: StoredMatrix | Sequence[StoredMatrix], instruction_set: str) -> np.ndarray:
    """Every row of an embedding, through the native kernels."""
    listed = [parts] if isinstance(parts, torch.Tensor | QuantisedMatrix) else list(parts)
    recorder = recorder_of()
    value = recorder.embed(NativeWeightPreparer().linear(listed))
    plain_head(recorder, recorder.select_sampled(value), int(listed[0].shape[1]))
    program = finish(recorder, instruction_set)
    return program.run(all_rows(sum(int(part.shape[0]) for part in listed))).numpy()
