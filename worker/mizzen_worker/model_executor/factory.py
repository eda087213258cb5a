"""Owns building a runner from options: weights, pool, attention, forward.

In which order that happens on a GPU, and what else, is in ``gpu_start.py``.
"""

import enum
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.config.env import process_environment
from mizzen_worker.contracts.batch import Runner, RunnerLimits
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.kernels.gpu.launching import compute_capability
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.layers.native_operations import (
    NativeRecorder,
    NativeSettings,
    NativeStepProgram,
    NativeWeightPreparer,
)
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.plan import require_room_for_weights
from mizzen_worker.model_executor.forward import EagerForward, Forward
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.gpu_model import (
    load_gpu_model,
    reason_against_kernels,
    step_capture,
)
from mizzen_worker.model_executor.gpu_start import ForwardMaker, GpuStart
from mizzen_worker.model_executor.graph_buckets import num_graphs
from mizzen_worker.model_executor.graphs import CudaGraphs
from mizzen_worker.model_executor.kernel_cache import KernelFolder
from mizzen_worker.model_executor.load_phase import LoadPhase, PhaseCallback, ignore_phase
from mizzen_worker.model_executor.memory_profile import CudaMeter, SizingRequest
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.one_token_forward import OneTokenForward
from mizzen_worker.model_executor.valueless import (
    VALUELESS,
    ValuelessGraphs,
    ValuelessLink,
    ValuelessSource,
)
from mizzen_worker.model_executor.weights.checkpoint import (
    Checkpoint,
    OpenWeights,
    open_checkpoint,
)
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.parameter_count import parameter_count
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

    ``kv_tokens`` is rounded down to whole pages; None takes what ``memory_fraction`` of a GPU
    leaves beside weights and a step of ``max_chunk_tokens``. ``context_length`` None means the
    model's; ``compile_cache`` keeps compiled GPU kernels; ``num_threads`` 0 leaves torch's own
    choice; ``device`` is ``cpu`` or ``cuda[:index]``.
    ``instruction_set`` names one of the native library's, None the best that there is.
    ``is_deterministic``: logits depend on a request's own tokens only, to the last bit. The native
    kernels always hold to that; plain torch then computes one token at a time. ``expert_tally``
    counts experts on a GPU, for benchmarks.
    """

    model: Path
    kv_tokens: int | None
    page_size: int
    max_slots: int
    context_length: int | None = None
    compute_type: ComputeType = ComputeType.AUTO
    weight_format: WeightFormat = WeightFormat.AUTO
    num_threads: int = 0
    device: str = "cpu"
    instruction_set: str | None = None
    is_deterministic: bool = False
    max_chunk_tokens: int = 8192
    memory_fraction: float = 0.9
    uses_graphs: bool = True
    compile_cache: Path = Path.home() / ".cache" / "mizzen" / "kernels"
    expert_tally: ExpertTally | None = None


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
    # "cuda" is the first GPU that this process sees.
    return torch.device("cuda", 0) if options.device == "cuda" else device


def _dtype(options: RunnerOptions, device: torch.device) -> torch.dtype:
    if options.compute_type is ComputeType.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    is_bfloat16 = options.compute_type is ComputeType.BFLOAT16
    return torch.bfloat16 if is_bfloat16 else torch.float32


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
    checkpoint: Checkpoint, settings: NativeSettings, progress: ProgressCallback
) -> ForwardMaker:
    """Packed weights and one native call per step."""
    weights = checkpoint.open_weights(progress)
    model = build_model(checkpoint.facts, weights.source, NativeWeightPreparer())
    weights.finish()

    def make(pool: DevicePool) -> Forward:
        recorder = NativeRecorder(pool, settings.num_heads)
        model.forward(recorder)
        return NativeStepProgram(recorder, pool, settings)

    return make


def _load_torch(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    context_length: int,
    progress: ProgressCallback,
) -> ForwardMaker:
    """Dense weights and one torch call after the other."""
    facts = checkpoint.facts
    weights = checkpoint.open_weights(progress)
    prepare = TorchWeightPreparer(_dtype(options, device), device)
    model = build_model(facts, weights.source, prepare)
    weights.finish()
    table = rotary_table(facts.rotary, context_length).to(device)

    def make(pool: DevicePool) -> Forward:
        eager = EagerForward(model, pool, TorchNativeAttention(pool), table, facts.rms_norm_eps)
        return OneTokenForward(eager) if options.is_deterministic else eager

    return make


def _reason_against_kernels(options: RunnerOptions, facts: ModelFacts) -> str | None:
    """Why the GPU's own kernels are left alone, None when they are not."""
    if options.weight_format is WeightFormat.DENSE:
        return "dense weights were asked for"
    if options.is_deterministic:
        return "results must not depend on the batch"
    return reason_against_kernels(facts)


def _load(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    context_length: int,
    progress: ProgressCallback,
) -> ForwardMaker:
    """Weights for the native kernels where these fit, else for eager torch."""
    instruction_set = _instruction_set(options, checkpoint.facts)
    if instruction_set is None:
        return _load_torch(options, checkpoint, device, context_length, progress)
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
    return _load_native(checkpoint, settings, progress)


def _pool_shape(facts: ModelFacts, limits: RunnerLimits) -> PoolShape:
    return PoolShape(
        num_layers=facts.shape.num_layers,
        num_pages=limits.num_pages,
        page_size=limits.page_size,
        num_kv_heads=facts.shape.num_kv_heads,
        head_dim=facts.shape.head_dim,
    )


def _build_pool(shape: PoolShape, dtype: torch.dtype, device: torch.device) -> DevicePool:
    try:
        return DevicePool(shape, dtype, device)
    except RuntimeError as error:
        message = (
            f"no memory for {shape.num_pages} KV pages of {shape.page_size} tokens ({error}); "
            "lower --kv-tokens"
        )
        raise ModelLoadError(message) from error


def _gpu_start(
    options: RunnerOptions, checkpoint: Checkpoint, limits: RunnerLimits, device: torch.device
) -> GpuStart:
    facts = checkpoint.facts
    dtype = _dtype(options, device)

    def load(place: torch.device, progress: ProgressCallback) -> ForwardMaker:
        if place == VALUELESS:
            empty = OpenWeights(source=ValuelessSource(), finish=lambda: None)
            without_values = replace(checkpoint, open_weights=lambda _: empty)
            return _load_on_gpu(options, without_values, place, limits.context_length, progress)
        require_room_for_weights(
            weights_bytes=parameter_count(facts) * dtype.itemsize,
            free_bytes=torch.cuda.mem_get_info(place)[0],
            dtype=str(dtype).removeprefix("torch."),
        )
        return _load_on_gpu(options, checkpoint, place, limits.context_length, progress)

    def make_runner(
        make_forward: ForwardMaker, limits: RunnerLimits, place: torch.device
    ) -> ModelRunner:
        pool = _build_pool(_pool_shape(facts, limits), dtype, place)
        is_valueless = place == VALUELESS
        link = ValuelessLink() if is_valueless else None
        forward = make_forward(pool)
        if not options.uses_graphs or not isinstance(forward, GpuForward):
            return ModelRunner(forward, limits, place, link)
        make_graphs = ValuelessGraphs if is_valueless else partial(CudaGraphs, device)
        captured = step_capture(forward, limits, make_graphs)
        return ModelRunner(forward, limits, place, link, captured)

    num_captured = num_graphs(limits.max_slots, limits.context_length)
    return GpuStart(
        device=device,
        capability=compute_capability(),
        sizing=SizingRequest(
            limits=limits,
            max_new_tokens=options.max_chunk_tokens,
            page_bytes=_pool_shape(facts, limits).page_values * dtype.itemsize,
            kv_tokens=options.kv_tokens,
            fraction=options.memory_fraction,
            num_graphs=num_captured if options.uses_graphs else 0,
        ),
        meter=CudaMeter(device),
        folder=KernelFolder(path=options.compile_cache, environment=process_environment()),
        facts=_kernel_facts(options, facts, limits, dtype),
        load=load,
        make_runner=make_runner,
    )


def _kernel_facts(
    options: RunnerOptions, facts: ModelFacts, limits: RunnerLimits, dtype: torch.dtype
) -> str:
    """What decides which kernels are launched, and for what they are specialised."""
    sizes = replace(limits, num_pages=1)
    flags = (options.max_chunk_tokens, options.uses_graphs, options.is_deterministic)
    return f"{facts.architecture} {facts.shape} {facts.windows} {dtype} {sizes} {flags}"


def _load_on_gpu(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    context_length: int,
    progress: ProgressCallback,
) -> ForwardMaker:
    """For its own kernels where these fit, else for eager torch."""
    reason = _reason_against_kernels(options, checkpoint.facts)
    try:
        if reason is None:
            dtype = _dtype(options, device)
            tally = options.expert_tally
            return load_gpu_model(
                checkpoint, dtype, device, context_length, progress, tally
            ).forward
        logger.info("plain torch computes this model", extra={"reason": reason})
        return _load_torch(options, checkpoint, device, context_length, progress)
    except torch.OutOfMemoryError as error:
        message = f"the weights do not fit: {error}; take a GPU with more memory"
        raise ModelLoadError(message) from error


def load_runner(
    options: RunnerOptions, progress: ProgressCallback, enter: PhaseCallback = ignore_phase
) -> LoadedModel:
    """Read the model and build its runner; raises ``ModelLoadError`` or ``ConfigError``.

    ``enter`` and ``progress`` are called from this thread: kernels, bytes of weights, graphs.
    """
    device = _device(options)
    if options.num_threads > 0:
        torch.set_num_threads(options.num_threads)
    checkpoint = open_checkpoint(
        options.model,
        is_dummy=options.weight_format is WeightFormat.DUMMY,
        dummy_device=device,
    )
    limits = _limits(options, checkpoint.facts, device)
    if device.type == "cuda":
        # Streams, graphs and Triton's launches are those of the current device.
        torch.cuda.set_device(device)
        runner = _gpu_start(options, checkpoint, limits, device).run(progress, enter)
    else:
        enter(LoadPhase.WEIGHTS)
        make_forward = _load(options, checkpoint, device, limits.context_length, progress)
        pool = _build_pool(_pool_shape(checkpoint.facts, limits), _dtype(options, device), device)
        runner = ModelRunner(make_forward(pool), limits, device)
    return LoadedModel(runner=runner, facts=checkpoint.facts)
