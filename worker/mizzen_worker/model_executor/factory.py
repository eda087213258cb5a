"""Owns building a runner from options: weights, pool, attention, forward.

In which order that happens on a GPU, and what else, is in ``gpu_start.py``.
"""

import logging
from dataclasses import dataclass

import torch

from mizzen_worker.contracts.batch import Runner, RunnerLimits
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.layers.collective import Collective
from mizzen_worker.layers.native_operations import (
    NativeRecorder,
    NativeSettings,
    NativeStepProgram,
    NativeWeightPreparer,
)
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.model_executor.forward import Forward
from mizzen_worker.model_executor.gpu_factory import gpu_kv_dtype, gpu_start
from mizzen_worker.model_executor.gpu_start import ForwardMaker
from mizzen_worker.model_executor.load_phase import LoadPhase, PhaseCallback, ignore_phase
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
from mizzen_worker.model_executor.runner_parts import (
    build_pool,
    device_of,
    dtype_of,
    load_torch,
    pool_shape,
)
from mizzen_worker.model_executor.shard import Shard, own_facts, read_model, shard_of
from mizzen_worker.model_executor.stored_types import (
    Computing,
    kv_dtype,
    quantise_function,
    with_stored_types,
)
from mizzen_worker.model_executor.weights.checkpoint import (
    Checkpoint,
    open_checkpoint,
)
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A runner that is ready for its first step, and what is known of its model."""

    runner: Runner
    facts: ModelFacts


def _limits(options: RunnerOptions, facts: ModelFacts, device: torch.device) -> RunnerLimits:
    """``num_pages`` is 1 where it will be measured."""
    context_length = options.context_length or facts.context_length
    if context_length > facts.context_length:
        message = (
            f"--context-length: {context_length} is more than the model's {facts.context_length}; "
            "use at most that"
        )
        raise ConfigError(message)
    is_measured = options.kv_tokens is None
    if is_measured and device.type == "cpu":
        message = "KV memory on a CPU is not measured; give --kv-tokens"
        raise ConfigError(message)
    num_pages = 1 if options.kv_tokens is None else options.kv_tokens // options.page_size
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


def _instruction_set(options: RunnerOptions, facts: ModelFacts) -> str | None:
    """The native library's instruction set to use, None for plain torch."""
    if options.instruction_set is not None and options.instruction_set not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS) or "none (the extension is not installed)"
        message = f"instruction set {options.instruction_set!r} is not available; here are: {known}"
        raise ConfigError(message)
    reason = _reason_for_torch(options, facts)
    if reason is not None:
        logger.info("plain torch computes this model", extra={"reason": reason})
        return None
    return options.instruction_set or INSTRUCTION_SETS[0]


def _reason_for_torch(options: RunnerOptions, facts: ModelFacts) -> str | None:
    """Why the native kernels are left alone, None when they are not."""
    if options.weight_format is WeightFormat.DENSE:
        return "dense weights were asked for"
    if not INSTRUCTION_SETS:
        return "the native extension is not installed"
    if facts.shape.experts is not None:
        return "the model is a mixture of experts"
    head_dim = facts.shape.head_dim
    return f"head size {head_dim} is not a multiple of 16" if head_dim % 16 else None


def _load_native(
    checkpoint: Checkpoint,
    settings: NativeSettings,
    progress: ProgressCallback,
    shard: Shard | None,
) -> ForwardMaker:
    """Packed weights, and one native call per step or between two sums over ranks."""
    model = read_model(checkpoint, NativeWeightPreparer(), progress, shard)
    ranks = None if shard is None else shard.ranks

    def make(pool: DevicePool) -> Forward:
        has_residual = ranks is None or ranks.is_leader
        recorder = NativeRecorder(pool, settings.num_heads, has_residual=has_residual)
        model.forward(recorder)
        return NativeStepProgram(recorder, pool, settings, ranks)

    return make


def _load(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    context_length: int,
    progress: ProgressCallback,
    shard: Shard | None,
) -> ForwardMaker:
    """Weights for the native kernels where these fit, else for eager torch."""
    instruction_set = _instruction_set(options, checkpoint.facts)
    if instruction_set is None:
        return load_torch(options, checkpoint, device, context_length, progress, shard)
    num_threads = torch.get_num_threads()
    # What is left to torch is small (sampling), and its pool spins on the cores of the crew.
    torch.set_num_threads(1)
    settings = NativeSettings(
        instruction_set=instruction_set,
        num_threads=num_threads,
        num_heads=own_facts(checkpoint.facts, shard).shape.num_heads,
        table=rotary_table(checkpoint.facts.rotary, context_length),
        eps=checkpoint.facts.rms_norm_eps,
    )
    return _load_native(checkpoint, settings, progress, shard)


def load_runner(
    options: RunnerOptions,
    progress: ProgressCallback,
    enter: PhaseCallback = ignore_phase,
    collective: Collective | None = None,
) -> LoadedModel:
    """Read the model and build its runner; raises ``ModelLoadError`` or ``ConfigError``.

    ``enter`` and ``progress`` are called from this thread: kernels, bytes of weights, graphs. With
    a ``collective`` the runner has this rank's part of the model; all ranks load with equal
    options, and from then on they launch the same steps in the same order. On CPUs none waits for
    another to load; on GPUs they run trial steps and capture graphs together.
    """
    device = device_of(options)
    if options.num_threads > 0:
        torch.set_num_threads(options.num_threads)
    checkpoint = open_checkpoint(
        options.model,
        is_dummy=options.weight_format is WeightFormat.DUMMY,
        dummy_device=device,
    )
    shard = shard_of(checkpoint.facts, collective)
    limits = _limits(options, checkpoint.facts, device)
    dtype = dtype_of(options, device)
    if device.type == "cuda":
        # Streams, graphs and Triton's launches are those of the current device.
        torch.cuda.set_device(device)
        kv = gpu_kv_dtype(options, own_facts(checkpoint.facts, shard), device)
        runner = gpu_start(options, checkpoint, limits, device, shard).run(progress, enter)
    else:
        computing = Computing(dtype=dtype, reason_against="there is no GPU")
        kv = kv_dtype(options.kv_type, checkpoint.facts, computing)
        quantise_function(options.quantization, checkpoint.facts, computing)
        enter(LoadPhase.WEIGHTS)
        make_forward = _load(options, checkpoint, device, limits.context_length, progress, shard)
        pool = build_pool(pool_shape(own_facts(checkpoint.facts, shard), limits), kv, device)
        runner = ModelRunner(
            make_forward(pool), limits, device, collective=None if shard is None else collective
        )
    facts = with_stored_types(checkpoint.facts, kv, dtype, options.quantization)
    return LoadedModel(runner=runner, facts=facts)
