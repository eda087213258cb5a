"""Owns what options left to this machine or to the model come to, for ``mizzen show-config``.

Owns no option, and decides nothing for a process that serves: it reads a model's header only, and
tells what the deciding code will find there.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mizzen_worker.config.env import default_compile_cache, process_environment
from mizzen_worker.config.parse import AUTO
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.contracts.operator_names import (
    FLAG_CONTEXT_LENGTH,
    FLAG_DATA_PARALLEL,
    FLAG_DEVICE,
    FLAG_DTYPE,
    FLAG_MODEL,
    FLAG_SERVED_MODEL_NAME,
    FLAG_TENSOR_PARALLEL,
    FLAG_THREADS,
)
from mizzen_worker.observability.process_log import is_json_wanted
from mizzen_worker.vocabulary.gguf_metadata import read_gguf_metadata
from mizzen_worker.vocabulary.json_file import read_json_object
from mizzen_worker.vocabulary.model_path import default_model_name, find_gguf

_FLAG_LOG_FORMAT = "--log-format"
_FLAG_KV_DTYPE = "--kv-dtype"
_FLAG_OVERLAP = "--overlap"
_FLAG_GRAPHS = "--cuda-graphs"
_FLAG_COMPILE_CACHE = "--compile-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What a value comes to, and why; ``value`` None: that cannot be told before loading."""

    value: str | None
    reason: str


def effective_values(configuration: Configuration) -> Mapping[str, Effective]:
    """Tell the outcome of every option of the verb that does not hold it itself, by flag."""
    given = {flag: resolved.value for flag, resolved in configuration.values.items()}
    model: Path = given[FLAG_MODEL]
    found: dict[str, Effective] = {}
    if not given[FLAG_SERVED_MODEL_NAME]:
        found[FLAG_SERVED_MODEL_NAME] = _of_model(model, _served_name)
    if FLAG_CONTEXT_LENGTH in given and given[FLAG_CONTEXT_LENGTH] is None:
        found[FLAG_CONTEXT_LENGTH] = _of_model(model, _context_length)
    if FLAG_DEVICE in given:
        found |= _of_engine(given)
    for flag, resolved in configuration.values.items():
        if resolved.reason:
            value = None if resolved.value is None else str(resolved.value)
            found[flag] = Effective(value=value, reason=resolved.reason)
    if given[_FLAG_LOG_FORMAT] == AUTO:
        is_json = is_json_wanted(AUTO)
        found[_FLAG_LOG_FORMAT] = Effective(
            value="json" if is_json else "text",
            reason=f"standard error is {'no' if is_json else 'a'} terminal",
        )
    return found


def _of_engine(given: Mapping[str, Any]) -> dict[str, Effective]:
    """Options of an engine that its device or this machine settles."""
    found: dict[str, Effective] = {}
    is_gpu = given[FLAG_DEVICE].partition(":")[0] == "cuda"
    place = "GPU" if is_gpu else "CPU"
    for flag, on_cpu, on_gpu in (
        (FLAG_DTYPE, "float32", "bfloat16"),
        (_FLAG_OVERLAP, "off", "on"),
        (_FLAG_GRAPHS, "off", "on"),
    ):
        if given[flag] == AUTO:
            name = on_gpu if is_gpu else on_cpu
            found[flag] = Effective(value=name, reason=f"{name} on a {place}")
    if given[_FLAG_KV_DTYPE] == AUTO:
        computing = found[FLAG_DTYPE].value if given[FLAG_DTYPE] == AUTO else given[FLAG_DTYPE]
        found[_FLAG_KV_DTYPE] = Effective(
            value=computing, reason="the type of computing, unless an FP8 model says fp8"
        )
    if given[_FLAG_COMPILE_CACHE] is None:
        folder, reason = default_compile_cache(process_environment())
        found[_FLAG_COMPILE_CACHE] = Effective(value=str(folder), reason=reason)
    if given[FLAG_THREADS] == 0:
        cores = len(os.sched_getaffinity(0))
        num_ranks = given[FLAG_DATA_PARALLEL] * given[FLAG_TENSOR_PARALLEL]
        shared = "" if num_ranks == 1 else f", shared by {num_ranks} ranks"
        found[FLAG_THREADS] = Effective(
            value=str(cores), reason=f"the cores of this machine{shared}"
        )
    return found


def _of_model(model: Path, tell: Callable[[Path], Effective]) -> Effective:
    if not model.exists():
        return Effective(value=None, reason=f"the model's own; {model} does not exist")
    try:
        return tell(model)
    except ModelLoadError as error:
        return Effective(value=None, reason=f"the model's own; {error}")


def _served_name(model: Path) -> Effective:
    source = find_gguf(model) or model
    kind = "file" if source.is_file() else "folder"
    return Effective(value=default_model_name(source), reason=f"the name of the {kind}")


def _context_length(model: Path) -> Effective:
    config = model / "config.json"
    if config.is_file():
        length = read_json_object(config).get("max_position_embeddings")
    else:
        gguf = find_gguf(model)
        metadata = read_gguf_metadata(gguf) if gguf is not None else {}
        length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not isinstance(length, int):
        return Effective(value=None, reason="the model's own; its header does not say it")
    return Effective(value=str(length), reason="the model's own limit")
