"""Owns ``mizzen plan-memory``: what a model takes of a GPU's memory, told without a GPU or torch.

Owns no arithmetic (``memory/plan.py``, ``model_executor/memory_estimate.py``). What it prints as
JSON has names that others may rely on.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.memory.plan import GIB, MemoryUse, PageSizes, pages_that_fit
from mizzen_worker.model_executor.memory_estimate import (
    EngineSizes,
    estimated_use,
    model_kv_token_bytes,
)
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.shard_plan import plan_shard

_VALUE_BYTES_BY_DTYPE = {"bfloat16": 2, "float32": 4}
_BYTES_BY_KV_DTYPE = {"bfloat16": 2, "fp8": 1}
_MOST_GIB = 1_000_000
_MOST_DIGITS, _SHOWN = 12, 80


def run(arguments: Sequence[str]) -> int:
    """Print the plan; gives the exit status: 1 where the model does not fit."""
    try:
        given = _parser().parse_args(arguments)
        whole = _facts(given.model)
        _require_servable(given.quantization, whole)
        # Rank 0 has no less than any other.
        facts = plan_shard(whole, rank=0, size=given.tensor_parallel_size).facts
    except (ConfigError, ModelLoadError) as error:
        sys.stderr.write(f"mizzen plan-memory: {error}\n")
        return 2
    sizes = EngineSizes(
        max_chunk_tokens=given.max_chunk_tokens,
        max_rows=given.max_running_requests,
        value_bytes=_VALUE_BYTES_BY_DTYPE[given.dtype],
        is_packed=given.quantization != "none",
        vocab_size=whole.shape.vocab_size,
    )
    total_bytes = int(given.gpu_memory * GIB)
    use = estimated_use(facts, sizes, total_bytes=total_bytes, fraction=given.memory_fraction)
    kv_bytes = _BYTES_BY_KV_DTYPE.get(given.kv_dtype, sizes.value_bytes)
    token_bytes = model_kv_token_bytes(facts, value_bytes=kv_bytes)
    page = PageSizes(page_size=given.page_size, page_bytes=given.page_size * token_bytes)
    num_tokens = max(0, pages_that_fit(use, page)) * given.page_size
    if given.json:
        sys.stdout.write(_json(given, facts, use, token_bytes, num_tokens))
    else:
        sys.stdout.write(_text(given, facts, use, token_bytes, num_tokens))
    return 0 if num_tokens else 1


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> None:  # type: ignore[override]
        msg = f"{message}; see mizzen plan-memory --help"
        raise ConfigError(msg)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mizzen plan-memory",
        description=(
            "Tell what a model takes of a GPU's memory, and how many positions of KV memory are\n"
            "left. Reads config.json only. The largest step and graphs are estimates; a start\n"
            "measures them and logs the same sum."
        ),
        epilog="example:\n  mizzen plan-memory /models/llama --gpu-memory 80",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="folder with a config.json")
    parser.add_argument("--gpu-memory", type=_positive(_MOST_GIB, "a number of GiB"), required=True,
                        metavar="GIB", help="memory of one GPU")  # fmt: skip
    parser.add_argument("--memory-fraction", type=_positive(1, "a share"), default=0.9,
                        metavar="SHARE",
                        help="share that a rank may fill (default %(default)s)")  # fmt: skip
    parser.add_argument("--dtype", choices=tuple(_VALUE_BYTES_BY_DTYPE), default="bfloat16",
                        help="type of weights and computing (default %(default)s)")  # fmt: skip
    parser.add_argument("--kv-dtype", choices=("auto", *_BYTES_BY_KV_DTYPE), default="auto",
                        help="type of KV (default %(default)s: as --dtype)")  # fmt: skip
    parser.add_argument("--quantization", choices=("none", "fp8", "fp8-block"), default="none",
                        help="rounding of matrices (default %(default)s)")  # fmt: skip
    for flag, default, most, what in (
        ("--page-size", 64, 1024, "positions of a page"),
        ("--max-chunk-tokens", 8192, 1 << 20, "prompt tokens of one step"),
        ("--max-running-requests", 256, 4096, "requests that run at once"),
        (
            "--tensor-parallel-size",
            1,
            1024,
            "ranks, of a GPU each, that share every layer",
        ),
    ):
        parser.add_argument(flag, type=_count(most), default=default, metavar="COUNT",
                            help=f"{what} (default %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    return parser


def _count(most: int) -> Callable[[str], int]:
    def take(text: str) -> int:
        if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) <= most:
            msg = f"{text[:_SHOWN]!r} is not a whole number from 1 to {most}"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return take


def _positive(most: float, what: str) -> Callable[[str], float]:
    def take(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number <= most:
            msg = f"{text[:_SHOWN]!r} is not {what} above 0, {most:,g} at most"
            raise argparse.ArgumentTypeError(msg)
        return number

    return take


def _require_servable(quantization: str, facts: ModelFacts) -> None:
    """Refuse what a start refuses."""
    if quantization != "none" and facts.shape.experts is not None:
        msg = f"--quantization: {quantization} does not serve mixtures of experts; leave it out"
        raise ConfigError(msg)


def _facts(model: Path) -> ModelFacts:
    folder = model.parent if model.name == "config.json" else model
    if not (folder / "config.json").is_file():
        msg = (
            f"{model}: holds no config.json; give a model folder that has one"
            " (of a GGUF, which takes what its file does and KV memory, nothing is reckoned)"
        )
        raise ConfigError(msg)
    return read_folder_facts(folder, has_weights=False)


def _text(
    given: argparse.Namespace, facts: ModelFacts, use: MemoryUse, token_bytes: int, num_tokens: int
) -> str:
    rows = [
        ("weights", _gib(use.weights_bytes), ""),
        ("KV memory", f"{token_bytes / 1024:.1f} KiB", "for one position"),
        ("largest step", _gib(use.step_bytes), "estimated"),
        ("graphs", _gib(use.graphs_bytes), "estimated"),
        ("CUDA", _gib(use.other_bytes), "estimated"),
        ("left for KV", _gib(use.left_bytes), f"of {_gib(use.total_bytes)} x {use.fraction:g}"),
    ]
    lines = [f"{name:<14}{size:>12}  {note}".rstrip() for name, size, note in rows]
    if given.tensor_parallel_size > 1:
        lines.insert(0, f"each of {given.tensor_parallel_size} ranks, on a GPU of its own:")
        lines.append("a plan only: a start refuses more than 1 such rank on GPUs in this version")
    if num_tokens:
        whole = num_tokens / facts.context_length
        lines.append(
            f"room for {num_tokens} positions: {whole:.1f} requests of the whole context of "
            f"{facts.context_length}"
        )
    else:
        lines.append("it does not fit: take a GPU with more memory, or a smaller model")
    return "\n".join(lines) + "\n"


def _json(
    given: argparse.Namespace, facts: ModelFacts, use: MemoryUse, token_bytes: int, num_tokens: int
) -> str:
    told = {
        "architecture": facts.architecture,
        "context_length": facts.context_length,
        "tensor_parallel_size": given.tensor_parallel_size,
        "gpu_memory_bytes": use.total_bytes,
        "memory_fraction": use.fraction,
        "weights_bytes": use.weights_bytes,
        "kv_token_bytes": token_bytes,
        "step_bytes": use.step_bytes,
        "graphs_bytes": use.graphs_bytes,
        "cuda_bytes": use.other_bytes,
        "left_bytes": use.left_bytes,
        "kv_tokens": num_tokens,
    }
    return json.dumps(told, indent=1) + "\n"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
