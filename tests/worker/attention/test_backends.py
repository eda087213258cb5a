"""Every attention implementation equals the reference: odd shapes, page sizes, mixed batches.

Whole steps of a small random model run through each implementation over the same pool contents,
so that rotary embedding, KV store and attention are compared together.
"""

import dataclasses

import numpy as np
import pytest
import torch
from tests.worker.attention.small_decoder import (
    CONTEXT,
    CPU,
    EPS,
    WINDOWED,
    Heads,
    RandomSource,
    batch_of,
    facts_of,
    on,
    pool_of,
)
from tests.worker.kernels.native_harness import EVERY_INSTRUCTION_SET
from tests.worker.model_executor.tiny_models import EVERY_DEVICE

from mizzen_worker.attention import torch_native
from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.attention.torch_reference import TorchReferenceAttention
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.layers.native_operations import (
    NativeRecorder,
    NativeSettings,
    NativeStepProgram,
    NativeWeightPreparer,
)
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.forward import EagerForward, Forward
from mizzen_worker.model_executor.one_token_forward import OneTokenForward
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.llama import LLAMA

SHAPES = [
    Heads(3, 3, 16, 1),
    Heads(9, 3, 64, 16),
    Heads(5, 1, 48, 3),
    Heads(20, 1, 16, 64),
    Heads(4, 2, 128, 7),
]


def eager(
    heads: Heads,
    pool: DevicePool,
    *,
    is_reference: bool = False,
    architecture: Architecture = LLAMA,
) -> Forward:
    facts = facts_of(heads, architecture)
    device = pool.keys(0).device
    prepare = TorchWeightPreparer(torch.float32, device)
    model = DenseDecoder(architecture, facts, RandomSource(), prepare)
    attention = TorchReferenceAttention(pool) if is_reference else TorchNativeAttention(pool)
    return EagerForward(model, pool, attention, rotary_table(facts.rotary, CONTEXT).to(device), EPS)


def native(
    heads: Heads, pool: DevicePool, instruction_set: str, architecture: Architecture = LLAMA
) -> Forward:
    facts = facts_of(heads, architecture)
    recorder = NativeRecorder(pool, heads.num_heads)
    DenseDecoder(architecture, facts, RandomSource(), NativeWeightPreparer()).forward(recorder)
    settings = NativeSettings(
        instruction_set=instruction_set,
        num_threads=2,
        num_heads=heads.num_heads,
        table=rotary_table(facts.rotary, CONTEXT),
        eps=EPS,
    )
    return NativeStepProgram(recorder, pool, settings)


BATCHES = {
    "one decode row": [(5, 1)],
    "first token": [(0, 1)],
    "cold prompt": [(0, 21)],
    "prompt behind a prefix": [(70, 23)],
    "long decode rows in splits": [(255, 1), (256, 1), (600, 1), (3, 1)],
    "mixed": [(0, 19), (64, 5), (300, 1), (12, 1)],
    "one new token before a longer row": [(33, 1), (0, 9), (100, 1), (0, 1), (250, 1)],
}


EVERY_ARCHITECTURE = pytest.mark.parametrize(
    "architecture", [LLAMA, WINDOWED], ids=["plain", "windowed"]
)


@EVERY_ARCHITECTURE
@EVERY_DEVICE
@pytest.mark.parametrize("heads", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(BATCHES))
def test_torch_native_equals_reference(
    heads: Heads, name: str, architecture: Architecture, device: str
) -> None:
    batch, own = batch_of(heads, BATCHES[name]), torch.device(device)
    pools = [pool_of(heads, torch.float32, place) for place in (CPU, own)]
    reference = eager(heads, pools[0], is_reference=True, architecture=architecture)
    found = eager(heads, pools[1], architecture=architecture).run(on(own, batch)).cpu()
    torch.testing.assert_close(found, reference.run(batch), rtol=1e-4, atol=1e-4)


@EVERY_ARCHITECTURE
@EVERY_DEVICE
def test_decode_rows_in_several_calls_equal_one_call(
    architecture: Architecture, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, own = SHAPES[1], torch.device(device)
    rows = [(start, 1) for start in (40, 3, 200, 40, 0, 71, 199, 9)]
    batch = on(own, batch_of(heads, rows))

    def run() -> torch.Tensor:
        return eager(heads, pool_of(heads, torch.float32, own), architecture=architecture).run(
            batch
        )

    whole = run()
    for bound in (1, 205, 450):
        monkeypatch.setattr(torch_native, "_MAX_GATHERED_POSITIONS", bound)
        torch.testing.assert_close(run(), whole, rtol=1e-5, atol=1e-5)


@EVERY_ARCHITECTURE
@EVERY_INSTRUCTION_SET
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_native_equals_torch_native(
    heads: Heads, instruction_set: str, architecture: Architecture
) -> None:
    for name, rows in BATCHES.items():
        batch = batch_of(heads, rows)
        torch_pool, native_pool = pool_of(heads, torch.float32), pool_of(heads, torch.float32)
        expected = eager(heads, torch_pool, architecture=architecture).run(batch)
        found = native(heads, native_pool, instruction_set, architecture).run(batch)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4), name
        for layer in range(2):
            torch.testing.assert_close(
                native_pool.keys(layer), torch_pool.keys(layer), rtol=1e-4, atol=1e-4
            )
            torch.testing.assert_close(
                native_pool.values(layer), torch_pool.values(layer), rtol=1e-4, atol=1e-4
            )


SELECTIONS = {
    "none": [],
    "several of one row": [3, 4, 5, 18],
    "out of order and twice": [25, 0, 18, 18, 19],
    "more than there are": list(range(26)) * 2,
}


@pytest.mark.parametrize("kind", ["torch", "one token", *INSTRUCTION_SETS])
@pytest.mark.parametrize("name", sorted(SELECTIONS))
def test_any_list_of_tokens_may_be_sampled(name: str, kind: str) -> None:
    heads = SHAPES[1]

    def forward() -> Forward:
        pool = pool_of(heads, torch.float32)
        if kind in INSTRUCTION_SETS:
            return native(heads, pool, kind)
        return OneTokenForward(eager(heads, pool)) if kind == "one token" else eager(heads, pool)

    whole = batch_of(heads, BATCHES["mixed"])
    chosen = dataclasses.replace(whole, sampled_tokens=torch.tensor(SELECTIONS[name]).long())
    every_token = forward().run(whole)
    found = forward().run(chosen)
    assert found.shape == (len(SELECTIONS[name]), 101)
    torch.testing.assert_close(found, every_token[SELECTIONS[name]], rtol=1e-5, atol=1e-5)


@EVERY_INSTRUCTION_SET
def test_bfloat16_pool_is_read_and_written(instruction_set: str) -> None:
    heads = SHAPES[1]
    batch = batch_of(heads, BATCHES["mixed"])
    pool = pool_of(heads, torch.bfloat16)
    widened = pool_of(heads, torch.float32)
    for layer in range(2):
        widened.keys(layer).copy_(pool.keys(layer))
        widened.values(layer).copy_(pool.values(layer))
    found = native(heads, pool, instruction_set).run(batch)
    expected = native(heads, widened, instruction_set).run(batch)
    difference = (found - expected).abs()  # logits are around 2; new keys are rounded to 8 bits
    assert float(difference.max()) < 0.2
    assert float(difference.mean()) < 0.02
    stored = widened.keys(0)[batch.kv_locations].bfloat16()
    assert torch.equal(pool.keys(0)[batch.kv_locations], stored)


@EVERY_INSTRUCTION_SET
def test_a_row_is_computed_alike_in_any_batch(instruction_set: str) -> None:
    heads = SHAPES[1]
    batch = batch_of(heads, BATCHES["long decode rows in splits"])
    together = native(heads, pool_of(heads, torch.float32), instruction_set).run(batch)
    for row in range(batch.num_rows):
        alone = ForwardBatch(
            token_ids=batch.token_ids[row : row + 1],
            positions=batch.positions[row : row + 1],
            kv_locations=batch.kv_locations[row : row + 1],
            page_table=batch.page_table,
            row_slots=batch.row_slots[row : row + 1],
            sampled_tokens=torch.zeros(1, dtype=torch.int64),
            device_row_starts=torch.tensor([0, 1], dtype=torch.int32),
            device_row_lengths=batch.device_row_lengths[row : row + 1],
            row_starts=np.array([0, 1], dtype=np.int32),
            row_lengths=batch.row_lengths[row : row + 1],
            page_size=batch.page_size,
        )
        found = native(heads, pool_of(heads, torch.float32), instruction_set).run(alone)
        assert torch.equal(found[0], together[row])
