"""Owns the parts that runners on every device have: device, type, pool, plain torch; no order."""

import re
from collections.abc import Sequence

import torch

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.layers.ranks import LONE_RANK
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, KvScale, PoolShape
from mizzen_worker.model_executor.forward import EagerForward, Forward
from mizzen_worker.model_executor.gpu_start import ForwardMaker
from mizzen_worker.model_executor.one_token_forward import OneTokenForward
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions
from mizzen_worker.model_executor.shard import Shard, read_model
from mizzen_worker.model_executor.weights.checkpoint import (
    Checkpoint,
)
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts

_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def device_of(options: RunnerOptions) -> torch.device:
    if _DEVICE.fullmatch(options.device) is None:
        message = f"--device: {options.device!r} is not known; use cpu, cuda or cuda:INDEX"
        raise ConfigError(message)
    device = torch.device(options.device)
    if device.type == "cuda":
        _require_gpu(options.device, device.index or 0)
    # "cuda" is the first GPU that this process sees.
    return torch.device("cuda", 0) if options.device == "cuda" else device


def _require_gpu(name: str, index: int) -> None:
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus == 0:
        message = f"--device: {name!r}, but torch sees no CUDA device; use --device cpu"
        raise ConfigError(message)
    if index >= num_gpus:
        message = f"--device: {name!r}, but GPUs here are 0 to {num_gpus - 1}; use one of them"
        raise ConfigError(message)


def dtype_of(options: RunnerOptions, device: torch.device) -> torch.dtype:
    if options.compute_type is ComputeType.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    is_bfloat16 = options.compute_type is ComputeType.BFLOAT16
    return torch.bfloat16 if is_bfloat16 else torch.float32


def load_torch(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    context_length: int,
    progress: ProgressCallback,
    shard: Shard | None = None,
) -> ForwardMaker:
    """Dense weights and one torch call after the other."""
    facts = checkpoint.facts
    prepare = TorchWeightPreparer(dtype_of(options, device), device)
    model = read_model(checkpoint, prepare, progress, shard)
    ranks = LONE_RANK if shard is None else shard.ranks
    table = rotary_table(facts.rotary, context_length).to(device)

    def make(pool: DevicePool) -> Forward:
        attention, eps = TorchNativeAttention(pool), facts.rms_norm_eps
        eager = EagerForward(model, pool, attention, table, eps, ranks)
        return OneTokenForward(eager) if options.is_deterministic else eager

    return make


def pool_shape(facts: ModelFacts, limits: RunnerLimits) -> PoolShape:
    return PoolShape(
        num_layers=facts.shape.num_layers,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        num_kv_heads=facts.shape.num_kv_heads,
        head_dim=facts.shape.head_dim,
    )


def build_pool(
    shape: PoolShape, dtype: torch.dtype, device: torch.device, scales: Sequence[KvScale] = ()
) -> DevicePool:
    try:
        return DevicePool(shape, dtype, device, scales)
    except RuntimeError as error:
        message = (
            f"no memory for {shape.num_pages} KV pages of {shape.page_size} tokens ({error}); "
            "lower --kv-tokens"
        )
        raise ModelLoadError(message) from error
