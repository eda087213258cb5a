"""Small models of FP8 matrices equal dense ones of the same numbers, and stay near exact ones."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.small_decoder import (
    WINDOWED,
    RandomSource,
    batch_of,
    facts_of,
    on,
    pool_of,
)
from tests.worker.layers.gpu.small_steps import DEVICE, DTYPE, HEADS, forward_of
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.fp8_matrix import FP8, quantise_blocks, quantise_rows
from mizzen_worker.layers.gpu.weights import GpuWeight, GpuWeightPreparer
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.memory_estimate import weights_bytes
from mizzen_worker.model_executor.runner_options import RunnerOptions
from mizzen_worker.model_executor.stored_types import (
    Computing,
    Quantization,
    quantise_function,
    with_stored_types,
)
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.model_facts import ModelFacts

SAME = 5e-2 if torch.bfloat16 == DTYPE else 1e-4
NEAR = 0.15
"""Relative error of logits. Each matrix adds 2.6 % of error, and seven of them in each of two
layers about four times that, where nothing of it cancels and attention is on few tokens."""
ARCHITECTURES = pytest.mark.parametrize(
    "architecture", [LLAMA, pytest.param(WINDOWED, marks=pytest.mark.slow)]
)


def facts_for(architecture: Architecture) -> ModelFacts:
    """Sizes of whole blocks, but for the rows of queries, keys and values together."""
    facts = facts_of(HEADS, architecture)
    shape = dataclasses.replace(facts.shape, hidden_size=128, intermediate_size=256)
    return dataclasses.replace(facts, shape=shape)


class Rounded(GpuWeightPreparer):
    """The numbers of FP8 matrices in dense ones."""

    def unnormed(self, weight: GpuWeight) -> GpuWeight:
        packed = super().unnormed(weight)
        assert packed.values.dtype == FP8
        return GpuWeight(values=packed.dense(DTYPE), bias=packed.bias)


def logits_of(
    architecture: Architecture, prepare: GpuWeightPreparer, batch: ForwardBatch
) -> torch.Tensor:
    model = DenseDecoder(architecture, facts_for(architecture), RandomSource(), prepare)
    return forward_of(model, HEADS, pool_of(HEADS, DTYPE, DEVICE)).run(batch)


@pytest.mark.parametrize(
    ("rows", "quantise"),
    [
        ([(40, 1)], quantise_rows),
        ([(40, 1), (7, 1)], quantise_blocks),
        ([(30, 9), (20, 1)], quantise_rows),
        slow_case([(40, 1)], quantise_blocks),
        slow_case([(40, 1), (7, 1)], quantise_rows),
        slow_case([(30, 9), (20, 1)], quantise_blocks),
    ],
)
@ARCHITECTURES
def test_logits(architecture: Architecture, rows: list[tuple[int, int]], quantise: object) -> None:
    """One token, a few, many."""
    batch = on(DEVICE, batch_of(HEADS, rows))
    exact, same, found = (
        logits_of(architecture, prepare, batch)
        for prepare in (
            GpuWeightPreparer(DTYPE, DEVICE),
            Rounded(DTYPE, DEVICE, quantise),  # type: ignore[arg-type]
            GpuWeightPreparer(DTYPE, DEVICE, quantise),  # type: ignore[arg-type]
        )
    )
    assert float((found - same).norm() / same.norm()) < SAME
    assert 0 < float((found - exact).norm() / exact.norm()) < NEAR


def test_head_and_embedding_stay_as_they_are() -> None:
    prepare = GpuWeightPreparer(DTYPE, DEVICE, quantise_rows)
    model = DenseDecoder(LLAMA, facts_for(LLAMA), RandomSource(), prepare)
    assert model._embedding.values.dtype == model._head.values.dtype == DTYPE
    layer = model._layers[0]
    for weight in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down):
        assert weight.values.dtype == FP8


def test_what_cannot_be_quantised_is_said(tmp_path: Path) -> None:
    by_kernels = Computing(dtype=torch.bfloat16, reason_against=None, capability=90)
    facts = facts_for(LLAMA)
    assert quantise_function(Quantization.NONE, facts, by_kernels) is None
    assert quantise_function(Quantization.FP8_BLOCK, facts, by_kernels) is quantise_blocks
    odd = facts_of(HEADS, LLAMA)
    assert quantise_function(Quantization.FP8, odd, by_kernels) is quantise_rows
    with pytest.raises(ConfigError, match="this model has 48, 128, 40; use fp8"):
        quantise_function(Quantization.FP8_BLOCK, odd, by_kernels)
    older = dataclasses.replace(by_kernels, capability=80)
    with pytest.raises(ConfigError, match="--quantization: fp8 needs a GPU"):
        quantise_function(Quantization.FP8, facts, older)
    for variant, sentence in (
        ("qwen3-moe", "fp8 does not serve mixtures of experts"),
        ("llama", "is for the GPU's kernels, .*there is no GPU.*; leave it out"),
    ):
        save_tiny(tmp_path, variant)
        options = RunnerOptions(
            model=tmp_path,
            kv_tokens=64,
            page_size=16,
            max_slots=2,
            quantization=Quantization.FP8,
        )
        with pytest.raises(ConfigError, match=sentence):
            load_runner(options, lambda done, total: None)


def test_sizes_and_identity() -> None:
    facts = facts_for(LLAMA)
    assert facts.architecture in ARCHITECTURE_BY_NAME
    exact = weights_bytes(facts, 2, is_packed=False)
    embedding = 2 * facts.shape.vocab_size * facts.shape.hidden_size
    packed = weights_bytes(facts, 2, is_packed=True)
    assert packed == embedding + (exact - embedding) // 2 * 33 // 32
    bfloat16, quantization = torch.bfloat16, Quantization.FP8_BLOCK
    changed = with_stored_types(facts, bfloat16, bfloat16, quantization).fingerprint
    assert changed == facts.fingerprint + "+weights-fp8-block"
