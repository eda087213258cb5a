"""Owns building a runner from options: weights, pool, attention, forward; runs no step."""

import enum
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.contracts.batch import Runner, RunnerLimits
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.layers.native_operations import (
    NativeRecorder,
    NativeSettings,
    NativeStepProgram,
    NativeWeightPreparer,
)
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.model_executor.forward import EagerForward, Forward
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.one_token_forward import OneTokenForward
from mizzen_worker.model_executor.weights.checkpoint import Checkpoint, open_checkpoint
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.registry import build_model

logger = logging.getLogger(__name__)


class ComputeType(enum.Enum):
    """Type of dense weights, activations and KV; AUTO is float32 on a CPU, bfloat16 on CUDA."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class WeightFormat(enum.Enum):
    """How weights are held.

    AUTO keeps them as stored (quantised ones packed) and runs the native kernels, where these are
    installed and fit the model; else as DENSE: in the compute type, through plain torch. DUMMY
    makes them up and then goes on as AUTO.
    """

    AUTO = "auto"
    DENSE = "dense"
    DUMMY = "dummy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """What ``load_runner`` needs.

    ``kv_tokens`` is rounded down to whole pages; ``context_length`` None means the model's;
    ``num_threads`` 0 leaves torch's own choice; ``device`` is ``cpu`` or ``cuda[:index]``.
    ``instruction_set`` names one of the native library's, None the best that there is.
    ``is_deterministic``: logits depend on a request's own tokens only, to the last bit. The native
    kernels always hold to that; plain torch then computes one token at a time.
    """

    model: Path
    kv_tokens: int
    page_size: int
    max_slots: int
    context_length: int | None = None
    compute_type: ComputeType = ComputeType.AUTO
    weight_format: WeightFormat = WeightFormat.AUTO
    num_threads: int = 0
    device: str = "cpu"
    instruction_set: str | None = None
    is_deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A runner that is ready for its first step, and what is known of its model."""

    runner: Runner
    facts: ModelFacts


def _device(options: RunnerOptions) -> torch.device:
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        message = f"device {options.device!r} is not known; use cpu or cuda"
        raise ConfigError(message) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        message = f"device {options.device!r}: torch sees no CUDA device; use --device cpu"
        raise ConfigError(message)
    return device


def _dtype(options: RunnerOptions, device: torch.device) -> torch.dtype:
    if options.compute_type is ComputeType.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    is_bfloat16 = options.compute_type is ComputeType.BFLOAT16
    return torch.bfloat16 if is_bfloat16 else torch.float32


def _limits(options: RunnerOptions, facts: ModelFacts) -> RunnerLimits:
    context_length = options.context_length or facts.context_length
    if context_length > facts.context_length:
        message = (
            f"--context-length: {context_length} is more than the model's {facts.context_length}; "
            "use at most that"
        )
        raise ConfigError(message)
    num_pages = options.kv_tokens // options.page_size
    if num_pages < 1 or options.max_slots < 1:
        message = (
            f"{options.kv_tokens} KV tokens in pages of {options.page_size} for "
            f"{options.max_slots} requests is no room; raise --kv-tokens"
        )
        raise ConfigError(message)
    return RunnerLimits(
        max_slots=options.max_slots,
        num_pages=num_pages,
        page_size=options.page_size,
        context_length=context_length,
        vocab_size=facts.shape.vocab_size,
    )


def _instruction_set(options: RunnerOptions, facts: ModelFacts, device: torch.device) -> str | None:
    """The native library's instruction set to use, None for plain torch."""
    if options.instruction_set is not None and options.instruction_set not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS) or "none (the extension is not installed)"
        message = f"instruction set {options.instruction_set!r} is not available; here are: {known}"
        raise ConfigError(message)
    reason = _reason_for_torch(options, facts, device)
    if reason is not None:
        logger.info("plain torch computes this model", extra={"reason": reason})
        return None
    return options.instruction_set or INSTRUCTION_SETS[0]


def _reason_for_torch(
    options: RunnerOptions, facts: ModelFacts, device: torch.device
) -> str | None:
    """Why the native kernels are left alone, None when they are not."""
    if device.type != "cpu":
        return f"the device is {device.type}"
    if options.weight_format is WeightFormat.DENSE:
        return "dense weights were asked for"
    if not INSTRUCTION_SETS:
        return "the native extension is not installed"
    if facts.shape.experts is not None:
        return "the model is a mixture of experts"
    head_dim = facts.shape.head_dim
    return f"head size {head_dim} is not a multiple of 16" if head_dim % 16 else None


def _build_native(
    checkpoint: Checkpoint, pool: DevicePool, settings: NativeSettings, progress: ProgressCallback
) -> Forward:
    """Packed weights and one native call per step."""
    weights = checkpoint.open_weights(progress)
    model = build_model(checkpoint.facts, weights.source, NativeWeightPreparer())
    weights.finish()
    recorder = NativeRecorder(pool, settings.num_heads)
    model.forward(recorder)
    return NativeStepProgram(recorder, pool, settings)


def _build_forward(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    pool: DevicePool,
    context_length: int,
    progress: ProgressCallback,
) -> Forward:
    """Native where it fits, else eager torch with dense weights in the pool's dtype."""
    keys = pool.keys(0)
    instruction_set = _instruction_set(options, checkpoint.facts, keys.device)
    if instruction_set is not None:
        num_threads = torch.get_num_threads()
        # What is left to torch is small (sampling), and its pool spins on the cores of the crew.
        torch.set_num_threads(1)
        settings = NativeSettings(
            instruction_set=instruction_set,
            num_threads=num_threads,
            num_heads=checkpoint.facts.shape.num_heads,
            table=rotary_table(checkpoint.facts.rotary, context_length),
            eps=checkpoint.facts.rms_norm_eps,
        )
        return _build_native(checkpoint, pool, settings, progress)
    weights = checkpoint.open_weights(progress)
    prepare = TorchWeightPreparer(keys.dtype, keys.device)
    model = build_model(checkpoint.facts, weights.source, prepare)
    weights.finish()
    table = rotary_table(checkpoint.facts.rotary, context_length).to(keys.device)
    eager = EagerForward(
        model, pool, TorchNativeAttention(pool), table, checkpoint.facts.rms_norm_eps
    )
    return OneTokenForward(eager) if options.is_deterministic else eager


def _build_pool(
    facts: ModelFacts, limits: RunnerLimits, dtype: torch.dtype, device: torch.device
) -> DevicePool:
    shape = PoolShape(
        num_layers=facts.shape.num_layers,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        num_kv_heads=facts.shape.num_kv_heads,
        head_dim=facts.shape.head_dim,
    )
    try:
        return DevicePool(shape, dtype, device)
    except RuntimeError as error:
        message = (
            f"no memory for {limits.num_pages} KV pages of {limits.page_size} tokens ({error}); "
            "lower --kv-tokens"
        )
        raise ModelLoadError(message) from error


def load_runner(options: RunnerOptions, progress: ProgressCallback) -> LoadedModel:
    """Read the model and build its runner; raises ``ModelLoadError`` or ``ConfigError``.

    ``progress`` is called from this thread while weights are read.
    """
    device = _device(options)
    if options.num_threads > 0:
        torch.set_num_threads(options.num_threads)
    checkpoint = open_checkpoint(
        options.model,
        is_dummy=options.weight_format is WeightFormat.DUMMY,
        dummy_device=device,
    )
    limits = _limits(options, checkpoint.facts)
    pool = _build_pool(checkpoint.facts, limits, _dtype(options, device), device)
    forward = _build_forward(options, checkpoint, pool, limits.context_length, progress)
    return LoadedModel(runner=ModelRunner(forward, limits, device), facts=checkpoint.facts)
