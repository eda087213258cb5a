"""Owns what a worker's options mean for its runner and its loop; loads and runs nothing."""

import os
from pathlib import Path

import torch

from mizzen_worker import __version__
from mizzen_worker.config.env import default_compile_cache, process_environment
from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.config.options import OPTIONS
from mizzen_worker.kernels.native_library import INSTRUCTION_SETS
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions, WeightFormat
from mizzen_worker.model_executor.runner_parts import device_of
from mizzen_worker.model_executor.stored_types import KvType, Quantization
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.models.shard_plan import plan_shard
from mizzen_worker.rank_group.place import RankPlace

_OWN_FIELDS = frozenset({"threads", "compile_cache", "cache_events"})
"""Options in which ranks of one group may differ."""


def agreed_options(
    engine: EngineOptions, options: RunnerOptions, place: RankPlace
) -> dict[str, str]:
    """What has to be the same on all ranks of a group, by flag.

    Reads which model it is: raises ``ModelLoadError``, and ``ConfigError`` where the ranks cannot
    share it, before any of them is waited for.
    """
    is_dummy = options.weight_format is WeightFormat.DUMMY
    facts = open_checkpoint(options.model, is_dummy=is_dummy).facts
    plan_shard(facts, rank=place.rank, size=place.size)
    return {
        "release": __version__,
        "model": facts.fingerprint,
        # Plain torch exchanges rows of another type.
        "native kernels": "yes" if INSTRUCTION_SETS else "no",
        # Other kernels, or none of ours, which exchange rows of other types and shapes.
        "GPU": _capability(device_of(options)),
        **{
            option.flag: str(getattr(engine, option.field))
            for option in OPTIONS
            if option.group is EngineOptions and option.field not in _OWN_FIELDS
        },
    }


def _capability(device: torch.device) -> str:
    """The compute capability, as 9.0."""
    if device.type != "cuda":
        return "none"
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def runner_options(
    engine: EngineOptions, model: Path, *, num_local_ranks: int = 1
) -> RunnerOptions:
    """What the factory needs to load a model; ranks of one machine share its cores."""
    return RunnerOptions(
        model=model,
        kv_tokens=engine.kv_tokens,
        page_size=engine.page_size,
        max_slots=engine.max_running_requests + _num_spare_slots(engine),
        max_rows=engine.max_running_requests,
        context_length=engine.context_length,
        compute_type=ComputeType(engine.dtype),
        kv_type=KvType(engine.kv_dtype),
        quantization=Quantization(engine.quantization),
        weight_format=WeightFormat(engine.load_format),
        is_deterministic=engine.deterministic,
        num_threads=engine.threads or max(1, len(os.sched_getaffinity(0)) // num_local_ranks),
        device=engine.device,
        max_chunk_tokens=engine.max_chunk_tokens,
        memory_fraction=engine.memory_fraction,
        uses_graphs=engine.cuda_graphs != "off",
        compile_cache=_compile_cache(engine),
    )


def _compile_cache(engine: EngineOptions) -> Path:
    if engine.compile_cache is None:
        return default_compile_cache(process_environment())[0]
    return Path(engine.compile_cache).expanduser()


def is_overlapped(engine: EngineOptions) -> bool:
    """On a CPU a launch waits for its step: overlap would only delay each answer by one."""
    is_gpu = engine.device.partition(":")[0] == "cuda"
    return engine.overlap == "on" or (engine.overlap == "auto" and is_gpu)


def _num_spare_slots(engine: EngineOptions) -> int:
    """A request that ends keeps its slot while a step in flight has a row of it."""
    return 1 + engine.max_running_requests // 8 if is_overlapped(engine) else 0
