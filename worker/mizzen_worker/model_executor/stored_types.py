"""Owns in which types a runner stores what it keeps: what options come to; stores nothing."""

import enum
from dataclasses import dataclass, replace

import torch

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.fp8_matrix import FP8
from mizzen_worker.models.model_facts import ModelFacts

LEAST_FP8_CAPABILITY = 89
"""GPUs before it do not convert e4m3."""


class KvType(enum.Enum):
    """Type of stored keys and values; AUTO is the type of computing."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


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


def kv_dtype(kv_type: KvType, computing: Computing) -> torch.dtype:
    """Type of the KV pool; raises ``ConfigError`` where the model cannot be computed over it."""
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


def _require_fp8(flag: str, word: str, capability: int) -> None:
    if capability < LEAST_FP8_CAPABILITY:
        message = (
            f"{flag}: {word} needs a GPU of compute capability 8.9 or later, this one has "
            f"{capability // 10}.{capability % 10}; leave the option out"
        )
        raise ConfigError(message)


def with_stored_types(facts: ModelFacts, kv: torch.dtype, compute: torch.dtype) -> ModelFacts:
    """Facts whose fingerprint tells apart KV that is not stored as it was computed."""
    if kv == compute:
        return facts
    name = str(kv).removeprefix("torch.")
    return replace(facts, fingerprint=f"{facts.fingerprint}+kv-{name}")
