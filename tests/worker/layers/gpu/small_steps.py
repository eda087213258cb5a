"""Whole steps of a small decoder in one of the GPU's regimes, beside float32 plain torch."""

from collections.abc import Callable

import torch
from tests.worker.attention.small_decoder import (
    CONTEXT,
    EPS,
    Heads,
    RandomSource,
    facts_of,
    pool_of,
)

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.attention.triton_attention import TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput
from mizzen_worker.layers.gpu.weights import GpuWeight, GpuWeightPreparer
from mizzen_worker.layers.operations import AttendFunction
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.gpu_forward import GpuForward, Regimes
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.model_facts import ExpertShape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
"""Interpreted products are right in float32 only."""
LIMIT = 5e-2 if torch.bfloat16 == DTYPE else 1e-4
"""Relative error of logits and caches: bfloat16 activations through two layers."""
HEADS = Heads(4, 2, 32, 16)
DEPENDENCE = [False, True] if DEVICE.type == "cuda" else [False]

MakeOperations = Callable[[GpuStep], object]
"""A regime's class."""


def table_of(heads: Heads) -> torch.Tensor:
    return rotary_table(facts_of(heads, LLAMA).rotary, CONTEXT).to(DEVICE)


def settings_of(heads: Heads) -> GpuSettings:
    return GpuSettings(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        eps=EPS,
        table=table_of(heads),
    )


def expected_of(
    heads: Heads,
    architecture: Architecture,
    batch: ForwardBatch,
    experts: ExpertShape | None = None,
) -> tuple[torch.Tensor, DevicePool]:
    """Logits and pool of float32 plain torch."""
    pool = pool_of(heads, torch.float32, DEVICE)
    facts = facts_of(heads, architecture, experts)
    prepare = TorchWeightPreparer(torch.float32, DEVICE)
    model = DenseDecoder(architecture, facts, RandomSource(), prepare)
    attend = TorchNativeAttention(pool).begin(batch).attend
    return model.forward(TorchOperations(batch, pool, attend, table_of(heads), EPS)), pool


def step_of(heads: Heads, batch: ForwardBatch, pool: DevicePool, **changes: object) -> GpuStep:
    """A step that is not captured, with plain attention, unless ``changes`` say otherwise."""

    def begin(other: ForwardBatch) -> AttendFunction:
        return TorchNativeAttention(pool).begin(other).attend

    values = {"attend": begin(batch), "begin_attention": begin, "is_exact": True} | changes
    return GpuStep(batch=batch, pool=pool, settings=settings_of(heads), **values)


def model_of(
    heads: Heads, architecture: Architecture, experts: ExpertShape | None = None
) -> DenseDecoder[GpuWeight]:
    prepare = GpuWeightPreparer(DTYPE, DEVICE)
    facts = facts_of(heads, architecture, experts)
    return DenseDecoder(architecture, facts, RandomSource(), prepare)


def forward_of(model: DenseDecoder[GpuWeight], heads: Heads, pool: DevicePool) -> GpuForward:
    """With all three regimes; those of a few tokens end at 8."""
    regimes = Regimes(
        one=GemvOperations, skinny=SkinnyOperations, large=LargeOperations, max_skinny_tokens=8
    )
    attention = TritonAttention(pool, TritonExtend(pool))
    return GpuForward(model, pool, attention, settings_of(heads), regimes)


def require_close(found: torch.Tensor, expected: torch.Tensor, limit: float = LIMIT) -> None:
    assert found.shape == expected.shape
    difference = (found.double() - expected.double()).norm()
    assert float(difference) <= limit * float(expected.double().norm())


def require_logits(found: HeadOutput, expected: torch.Tensor, limit: float = LIMIT) -> None:
    assert found.logits is not None
    assert found.logits.dtype == torch.float32
    require_close(found.logits, expected, limit)


def require_best(output: HeadOutput, expected: torch.Tensor) -> None:
    """The best of the blocks are the best of these logits."""
    assert output.logits is None
    assert output.best_values is not None
    assert output.best_ids is not None
    best = output.best_values.max(-1)
    require_close(best.values, expected.max(-1).values)
    ids = output.best_ids.long().gather(1, best.indices[:, None])
    # Near ties may fall either way in bfloat16.
    require_close(expected.gather(1, ids)[:, 0], expected.max(-1).values)


def require_keys(pool: DevicePool, expected: DevicePool, batch: ForwardBatch) -> None:
    """Those of the batch's tokens are there, others as they were, but for the sink in page 0."""
    for layer in range(2):
        for found, wanted in (
            (pool.keys(layer), expected.keys(layer)),
            (pool.values(layer), expected.values(layer)),
        ):
            require_close(found[batch.page_size :], wanted[batch.page_size :])
            require_close(found[batch.kv_locations], wanted[batch.kv_locations])


def found_of(
    operations: MakeOperations,
    heads: Heads,
    architecture: Architecture,
    batch: ForwardBatch,
    experts: ExpertShape | None = None,
    **changes: object,
) -> tuple[HeadOutput, DevicePool]:
    """What the head gave, and the pool; ``changes`` as of ``step_of``."""
    pool = pool_of(heads, DTYPE, DEVICE)
    step = step_of(heads, batch, pool, **changes)
    output = model_of(heads, architecture, experts).forward(operations(step))
    assert isinstance(output, HeadOutput)
    return output, pool


def check(
    operations: MakeOperations,
    heads: Heads,
    architecture: Architecture,
    batch: ForwardBatch,
    **changes: object,
) -> None:
    """Logits, keys and values of a step; ``changes`` as of ``step_of``."""
    expected, expected_pool = expected_of(heads, architecture, batch)
    found, pool = found_of(operations, heads, architecture, batch, **changes)
    require_logits(found, expected)
    require_keys(pool, expected_pool, batch)
