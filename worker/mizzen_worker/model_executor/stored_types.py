"""Owns in which types weights and KV are stored: what options come to; stores nothing."""

import enum
from dataclasses import dataclass, replace

import torch

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.fp8_matrix import FP8, GROUP, quantise_blocks, quantise_rows
from mizzen_worker.layers.gpu.weights import Quantise
from mizzen_worker.models.model_facts import ModelFacts

LEAST_FP8_CAPABILITY = 89
"""GPUs before it do not convert e4m3."""


class KvType(enum.Enum):
    """Type of stored keys and values.

    AUTO is the type of computing, or FP8 where the model was made for it and the GPU serves it.
    """

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


class Quantization(enum.Enum):
    """How matrices of layers are rounded when they are loaded on a GPU; NONE: not at all.

    FP8 has a scale for every row, FP8_BLOCK one for every 128 x 128 values.
    """

    NONE = "none"
    FP8 = "fp8"
    FP8_BLOCK = "fp8-block"


_QUANTISE = {Quantization.FP8: quantise_rows, Quantization.FP8_BLOCK: quantise_blocks}
_DTYPE_BY_KV_TYPE = {KvType.BFLOAT16: torch.bfloat16, KvType.FP8: FP8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How a model is computed: in ``dtype``, and by whom.

    ``reason_against``: why the GPU's own kernels do not do it, None where they do;
    ``capability``: of the GPU.
    """

    dtype: torch.dtype
    reason_against: str | None
    capability: int = 0


def kv_dtype(kv_type: KvType, facts: ModelFacts, computing: Computing) -> torch.dtype:
    """Type of the KV pool; raises ``ConfigError`` where the model cannot be computed over it."""
    serves_fp8 = computing.reason_against is None and computing.capability >= LEAST_FP8_CAPABILITY
    if kv_type is KvType.AUTO and facts.has_fp8_kv and serves_fp8:
        return FP8
    wanted = _DTYPE_BY_KV_TYPE.get(kv_type, computing.dtype)
    if wanted == computing.dtype:
        return wanted
    if computing.reason_against is not None:
        message = (
            f"--kv-dtype: {kv_type.value} is for the GPU's kernels, which do not compute this model"
            f" ({computing.reason_against}); use auto"
        )
        raise ConfigError(message)
    if wanted == FP8:
        _require_fp8("--kv-dtype", kv_type.value, computing.capability)
    return wanted


def quantise_function(
    quantization: Quantization, facts: ModelFacts, computing: Computing
) -> Quantise | None:
    """What rounds matrices; raises ``ConfigError`` where a model cannot be computed so."""
    if quantization is Quantization.NONE:
        return None
    word, shape = quantization.value, facts.shape
    if shape.experts is not None:
        message = f"--quantization: {word} does not serve mixtures of experts; leave it out"
        raise ConfigError(message)
    if computing.reason_against is not None:
        message = (
            f"--quantization: {word} is for the GPU's kernels, which do not compute this model"
            f" ({computing.reason_against}); leave it out"
        )
        raise ConfigError(message)
    _require_fp8("--quantization", word, computing.capability)
    inputs = (shape.hidden_size, shape.num_heads * shape.head_dim, shape.intermediate_size)
    if quantization is Quantization.FP8_BLOCK and any(size % GROUP for size in inputs):
        message = (
            f"--quantization: {word} needs sizes that are multiples of {GROUP}, this model has "
            f"{', '.join(map(str, inputs))}; use fp8"
        )
        raise ConfigError(message)
    return _QUANTISE[quantization]


def _require_fp8(flag: str, word: str, capability: int) -> None:
    if capability < LEAST_FP8_CAPABILITY:
        message = (
            f"{flag}: {word} needs a GPU of compute capability 8.9 or later, this one has "
            f"{capability // 10}.{capability % 10}; leave the option out"
        )
        raise ConfigError(message)


def with_stored_types(
    facts: ModelFacts,
    kv: torch.dtype,
    compute: torch.dtype,
    quantization: Quantization = Quantization.NONE,
) -> ModelFacts:
    """Facts whose fingerprint tells apart KV of rounded weights, or not stored as computed."""
    fingerprint = facts.fingerprint
    if quantization is not Quantization.NONE:
        fingerprint += f"+weights-{quantization.value}"
    if kv != compute:
        fingerprint += f"+kv-{str(kv).removeprefix('torch.')}"
    return replace(facts, fingerprint=fingerprint)
