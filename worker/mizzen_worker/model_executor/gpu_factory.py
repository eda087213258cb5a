"""Owns making what a start on a GPU needs from options; the order is ``gpu_start.py``'s."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from mizzen_worker.config.env import process_environment
from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.kernels.fp8_matrix import FP8
from mizzen_worker.kernels.gpu.launching import compute_capability
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.memory.plan import require_room_for_weights
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.gpu_model import (
    load_gpu_model,
    reason_against_kernels,
    step_capture,
)
from mizzen_worker.model_executor.gpu_start import ForwardMaker, GpuStart
from mizzen_worker.model_executor.graph_buckets import (
    longest_padded,
    most_captured_tokens,
    num_graphs,
    uncaptured_tokens,
)
from mizzen_worker.model_executor.graphs import CudaGraphs, GraphMaker
from mizzen_worker.model_executor.kernel_cache import KernelFolder
from mizzen_worker.model_executor.memory_estimate import weights_bytes
from mizzen_worker.model_executor.memory_profile import CudaMeter, SizingRequest
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
from mizzen_worker.model_executor.runner_parts import build_pool, dtype_of, load_torch, pool_shape
from mizzen_worker.model_executor.shard import Shard, own_facts
from mizzen_worker.model_executor.stored_types import (
    LEAST_FP8_CAPABILITY,
    Computing,
    kv_dtype,
    quantise_function,
)
from mizzen_worker.model_executor.valueless import (
    VALUELESS,
    ValuelessCollective,
    ValuelessGraphs,
    ValuelessLink,
    ValuelessSource,
)
from mizzen_worker.model_executor.weights.checkpoint import (
    Checkpoint,
    OpenWeights,
)
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts

logger = logging.getLogger(__name__)

_FEW_TOKENS = 32


def gpu_start(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    limits: RunnerLimits,
    device: torch.device,
    shard: Shard | None = None,
) -> GpuStart:
    """``shard``: what this rank has of the model; its collective meets every rank on the way."""
    facts = own_facts(checkpoint.facts, shard)
    dtype = dtype_of(options, device)
    kv = gpu_kv_dtype(options, facts, device)
    quantise = quantise_function(options.quantization, facts, _computing(options, facts, device))

    longest = longest_padded(facts.shape)
    scales = checkpoint.read_kv_scales() if kv == FP8 else ()

    def load(place: torch.device, progress: ProgressCallback) -> ForwardMaker:
        keeps_fp8 = compute_capability() >= LEAST_FP8_CAPABILITY
        prepare = GpuWeightPreparer(dtype, place, quantise, keeps_fp8=keeps_fp8)
        length = limits.context_length
        if place == VALUELESS:
            empty = OpenWeights(source=ValuelessSource(facts.fp8_scales), finish=lambda: None)
            without_values = replace(checkpoint, open_weights=lambda _: empty)
            alone = _without_others(shard)
            if options.is_deterministic:
                # One token at a time asks for values; the kernels of its steps are the same.
                eager = replace(options, is_deterministic=False)
                return load_torch(eager, without_values, place, length, progress, alone)
            return _load_on_gpu(options, without_values, prepare, length, progress, alone)
        require_room_for_weights(
            weights_bytes=weights_bytes(
                facts,
                dtype.itemsize,
                is_packed=quantise is not None,
            ),
            free_bytes=torch.cuda.mem_get_info(place)[0],
            dtype=str(dtype).removeprefix("torch."),
        )
        return _load_on_gpu(options, checkpoint, prepare, length, progress, shard)

    def make_runner(
        make_forward: ForwardMaker, limits: RunnerLimits, place: torch.device
    ) -> ModelRunner:
        pool = build_pool(pool_shape(facts, limits), kv, place, scales)
        is_valueless = place == VALUELESS
        link = ValuelessLink() if is_valueless else None
        forward = make_forward(pool)
        ranks = _without_others(shard) if is_valueless else shard
        collective = None if ranks is None else ranks.collective
        if not options.uses_graphs or not isinstance(forward, GpuForward):
            return ModelRunner(forward, limits, place, link, collective=collective)
        make_graphs = ValuelessGraphs if is_valueless else _graph_maker(device, shard)
        captured = step_capture(forward, limits, make_graphs, longest, options.max_rows)
        return ModelRunner(forward, limits, place, link, captured, collective)

    return GpuStart(
        device=device,
        capability=compute_capability(),
        sizing=SizingRequest(
            limits=limits,
            # One token at a time takes as much for few as for many, and minutes for those.
            max_new_tokens=_FEW_TOKENS if options.is_deterministic else options.max_chunk_tokens,
            page_bytes=pool_shape(facts, limits).page_values * kv.itemsize,
            kv_tokens=options.kv_tokens,
            fraction=options.memory_fraction,
            num_graphs=num_graphs(options.max_rows or limits.max_slots, limits.context_length)
            if options.uses_graphs
            else 0,
            captured_tokens=most_captured_tokens(limits.context_length, longest),
        ),
        meter=CudaMeter(device),
        folder=KernelFolder(path=options.compile_cache, environment=process_environment()),
        facts=f"{_kernel_facts(options, facts, limits, dtype)} {kv}{_share_facts(shard)}",
        load=load,
        make_runner=make_runner,
        uncaptured_tokens=None
        if options.is_deterministic
        else uncaptured_tokens(limits.context_length, longest),
        **({} if shard is None else {"least": shard.least}),
    )


def _without_others(shard: Shard | None) -> Shard | None:
    """The same share where nothing is exchanged."""
    if shard is None:
        return None
    plan = shard.plan
    return replace(shard, collective=ValuelessCollective(plan.rank, plan.size))


def _graph_maker(device: torch.device, shard: Shard | None) -> Callable[[], GraphMaker]:
    if shard is None:
        return partial(CudaGraphs, device)
    return partial(CudaGraphs, device, shard.is_any)


def _share_facts(shard: Shard | None) -> str:
    """Kernels are specialised for where a rank's rows of the vocabulary begin."""
    return "" if shard is None else f" rank {shard.plan.rank} of {shard.plan.size}"


def gpu_kv_dtype(options: RunnerOptions, facts: ModelFacts, device: torch.device) -> torch.dtype:
    """Type of the KV pool; raises ``ConfigError``."""
    return kv_dtype(options.kv_type, facts, _computing(options, facts, device))


def _computing(options: RunnerOptions, facts: ModelFacts, device: torch.device) -> Computing:
    return Computing(
        dtype=dtype_of(options, device),
        reason_against=_reason_against_kernels(options, facts),
        capability=compute_capability(),
    )


def _kernel_facts(
    options: RunnerOptions, facts: ModelFacts, limits: RunnerLimits, dtype: torch.dtype
) -> str:
    """What decides which kernels are launched, and for what they are specialised."""
    sizes = replace(limits, num_pages=1)
    weights = (options.quantization.value, facts.fp8_scales)
    flags = (
        *weights,
        options.max_chunk_tokens,
        options.max_rows,
        options.uses_graphs,
        options.expert_tally is not None,
    )
    in_torch = _reason_against_kernels(options, facts)
    return f"{facts.architecture} {facts.shape} {facts.windows} {dtype} {sizes} {flags} {in_torch}"


def _reason_against_kernels(options: RunnerOptions, facts: ModelFacts) -> str | None:
    """Why the GPU's own kernels are left alone, None when they are not."""
    if options.weight_format is WeightFormat.DENSE:
        return "dense weights were asked for"
    if options.is_deterministic:
        return "results must not depend on the batch"
    return reason_against_kernels(facts)


def _load_on_gpu(
    options: RunnerOptions,
    checkpoint: Checkpoint,
    prepare: GpuWeightPreparer,
    context_length: int,
    progress: ProgressCallback,
    shard: Shard | None,
) -> ForwardMaker:
    """For its own kernels where these fit, else for eager torch."""
    reason = _reason_against_kernels(options, own_facts(checkpoint.facts, shard))
    try:
        if reason is None:
            return load_gpu_model(
                checkpoint, prepare, context_length, progress, options.expert_tally, shard
            ).forward
        logger.info("plain torch computes this model", extra={"reason": reason})
        return load_torch(options, checkpoint, prepare.device, context_length, progress, shard)
    except torch.OutOfMemoryError as error:
        message = f"the weights do not fit: {error}; take a GPU with more memory"
        raise ModelLoadError(message) from error
