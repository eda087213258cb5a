"""Whole small models over an FP8 pool stay near those over an exact one; what cannot be is said."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.worker.attention.small_decoder import (
    EPS,
    WINDOWED,
    RandomSource,
    batch_of,
    facts_of,
    on,
    pool_of,
)
from tests.worker.kernels.gpu.exact_fp8 import exact_fp8  # noqa: F401  (a fixture)
from tests.worker.layers.gpu.small_steps import DEVICE, DTYPE, HEADS, forward_of, model_of, table_of
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.fp8_matrix import FP8
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, KvScale
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions
from mizzen_worker.model_executor.stored_types import Computing, KvType, kv_dtype, with_stored_types
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.llama import LLAMA

SAME = 5e-2 if torch.bfloat16 == DTYPE else 5e-3
"""Relative error beside plain torch over rounded keys and values: a few of them round otherwise."""
NEAR = 0.2
"""And beside exact ones. An e4m3 number is within 2 ** -4 of what it stands for, 2.6 % in the mean
square; the scores of these models are large (attention is nearly all on one token), so the error of
a key is multiplied before the softmax."""
SCALES = (KvScale(key=0.5, value=2.0), KvScale(key=1.0, value=0.25))


class RoundingOperations(TorchOperations):
    """Plain torch, but keys and values are stored as FP8 would hold them."""

    def _rotate_and_store(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> torch.Tensor:
        rotated = super()._rotate_and_store(queries, keys, values, layer)
        places, scale = self._batch.kv_locations, SCALES[layer]
        for pool, factor in (
            (self._pool.keys(layer), scale.key),
            (self._pool.values(layer), scale.value),
        ):
            pool[places] = (pool[places] / factor).to(FP8).float() * factor
        return rotated


def rounded_logits(
    architecture: Architecture, packed: DevicePool, batch: ForwardBatch
) -> torch.Tensor:
    """What the kernels should give over ``packed``, by plain torch in float32."""
    facts = facts_of(HEADS, architecture)
    prepare = TorchWeightPreparer(torch.float32, DEVICE)
    model = DenseDecoder(architecture, facts, RandomSource(), prepare)
    pool = pool_of(HEADS, torch.float32, DEVICE)
    for layer, scale in enumerate(SCALES):
        pool.keys(layer).copy_(packed.keys(layer).float() * scale.key)
        pool.values(layer).copy_(packed.values(layer).float() * scale.value)
    attend = TorchNativeAttention(pool).begin(batch).attend
    return model.forward(RoundingOperations(batch, pool, attend, table_of(HEADS), EPS))


def logits_of(
    architecture: Architecture, pools: list[DevicePool], batch: ForwardBatch
) -> list[torch.Tensor]:
    """By pool."""
    model = model_of(HEADS, architecture)
    return [forward_of(model, HEADS, pool).run(batch) for pool in pools]


@pytest.mark.usefixtures("exact_fp8")
@pytest.mark.parametrize("architecture", [LLAMA, pytest.param(WINDOWED, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", [[(40, 1)], [(40, 1), (7, 1)], [(30, 9), (20, 1)]])
def test_logits_stay_near(architecture: Architecture, rows: list[tuple[int, int]]) -> None:
    """One token; a few; a mixed step. What was there before is the same in both pools."""
    exact = pool_of(HEADS, DTYPE, DEVICE)
    packed = DevicePool(exact.shape, FP8, DEVICE, SCALES)
    for layer, scale in enumerate(SCALES):
        packed.keys(layer).copy_((exact.keys(layer).float() / scale.key).to(FP8))
        packed.values(layer).copy_((exact.values(layer).float() / scale.value).to(FP8))
    batch = on(DEVICE, batch_of(HEADS, rows))
    same = rounded_logits(architecture, packed, batch)
    near, found = logits_of(architecture, [exact, packed], batch)
    assert float((found - same).norm() / same.norm()) < SAME
    assert 0 < float((found - near).norm() / near.norm()) < NEAR


def test_fp8_kv_is_for_the_kernels(tmp_path: Path) -> None:
    facts = facts_of(HEADS, LLAMA)
    by_kernels = Computing(dtype=torch.bfloat16, reason_against=None, capability=90)
    assert kv_dtype(KvType.FP8, facts, by_kernels) is FP8
    assert kv_dtype(KvType.AUTO, facts, by_kernels) is torch.bfloat16
    made_for_fp8 = dataclasses.replace(facts, has_fp8_kv=True)
    assert kv_dtype(KvType.AUTO, made_for_fp8, by_kernels) is FP8
    assert kv_dtype(KvType.BFLOAT16, made_for_fp8, by_kernels) is torch.bfloat16
    in_torch = dataclasses.replace(by_kernels, reason_against="it is odd")
    assert kv_dtype(KvType.AUTO, made_for_fp8, in_torch) is torch.bfloat16
    older = Computing(dtype=torch.bfloat16, reason_against=None, capability=80)
    assert kv_dtype(KvType.BFLOAT16, facts, older) is torch.bfloat16
    with pytest.raises(ConfigError, match=r"fp8 needs a GPU .* 8.9 or later, this one has 8.0"):
        kv_dtype(KvType.FP8, facts, older)
    save_tiny(tmp_path, "llama")
    options = RunnerOptions(
        model=tmp_path, kv_tokens=64, page_size=16, max_slots=2, kv_type=KvType.FP8
    )
    with pytest.raises(ConfigError, match="--kv-dtype: fp8 is for the GPU's kernels"):
        load_runner(options, lambda done, total: None)


def test_identity_tells_stored_types_apart() -> None:
    facts = facts_of(HEADS, LLAMA)
    assert with_stored_types(facts, torch.bfloat16, torch.bfloat16) == facts
    changed = with_stored_types(facts, FP8, torch.bfloat16).fingerprint
    assert changed == facts.fingerprint + "+kv-float8_e4m3fn"
