"""Owns what a spec says of the engine's use of memory: fields, arguments, the engine's defaults.

Does not own the formula (``memory_formula``). The engine has the last word about its arguments;
what is not understood here is only not reckoned with. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from mizzen_operator.spec.model import Engine
from mizzen_operator.worker_contract import (
    DEFAULT_CPU_KV_TOKENS,
    DEFAULT_CPU_PAGE_SIZE,
    DEFAULT_GPU_MAX_CHUNK,
    DEFAULT_GPU_MAX_RUNNING,
    DEFAULT_GPU_PAGE_SIZE,
    DEFAULT_MEMORY_FRACTION,
    ENGINE_ARG_CUDA_GRAPHS,
    ENGINE_ARG_KV_DTYPE,
    ENGINE_ARG_MAX_CHUNK,
    ENGINE_ARG_MEMORY_FRACTION,
    ENGINE_ARG_QUANTIZATION,
    ENGINE_ARGS_UNFORESEEN,
    FLAG_MAX_RUNNING,
)

_AUTO = "auto"
_VALUE_BYTES = {"float32": 4, "bfloat16": 2}
_IS_PACKED = {"none": False, "fp8": True, "fp8-block": True}
_USES_GRAPHS = {_AUTO: True, "on": True, "off": False}
_MOST_DIGITS = 9
_LEAST_SHARE = 1e-6
"""Below it a share of any memory is nothing, and memory divided by it is no number any more."""
Value = TypeVar("Value")


class UnforeseenError(Exception):
    """An argument with which memory cannot be reckoned; the message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Everything beside the model that memory follows from, sizes in bytes, lengths in tokens.

    ``kv_tokens`` None: what is left of a GPU. ``kv_value_bytes`` None: of FP8 where the model was
    made for it, else as computed.
    """

    page_size: int
    kv_tokens: int | None
    value_bytes: int
    kv_value_bytes: int | None
    fraction: float
    max_chunk_tokens: int
    max_rows: int
    is_packed: bool
    uses_graphs: bool


def gpu_options(engine: Engine) -> MemoryOptions:
    """Of an engine on GPUs; raises ``UnforeseenError``."""
    args = engine.args
    _require_foreseen(args)
    computing = "bfloat16" if engine.dtype == _AUTO else engine.dtype
    kv_types = {_AUTO: None, "bfloat16": 2, "fp8": 1}
    return MemoryOptions(
        page_size=engine.page_size or DEFAULT_GPU_PAGE_SIZE,
        kv_tokens=engine.kv_tokens,
        value_bytes=_VALUE_BYTES[computing],
        kv_value_bytes=_word(args, ENGINE_ARG_KV_DTYPE, kv_types, _AUTO),
        fraction=_share(args, ENGINE_ARG_MEMORY_FRACTION, DEFAULT_MEMORY_FRACTION),
        max_chunk_tokens=_count(args, ENGINE_ARG_MAX_CHUNK, DEFAULT_GPU_MAX_CHUNK),
        max_rows=_count(args, FLAG_MAX_RUNNING, DEFAULT_GPU_MAX_RUNNING),
        is_packed=_word(args, ENGINE_ARG_QUANTIZATION, _IS_PACKED, "none"),
        uses_graphs=_word(args, ENGINE_ARG_CUDA_GRAPHS, _USES_GRAPHS, _AUTO),
    )


def cpu_options(engine: Engine) -> MemoryOptions:
    """Of an engine on CPUs, which sets nothing aside for steps; raises ``UnforeseenError``.

    Weights are kept as they are stored, so their values take 2 bytes or more whatever the type of
    computing is.
    """
    _require_foreseen(engine.args)
    computing = "float32" if engine.dtype == _AUTO else engine.dtype
    return MemoryOptions(
        page_size=engine.page_size or DEFAULT_CPU_PAGE_SIZE,
        kv_tokens=engine.kv_tokens or DEFAULT_CPU_KV_TOKENS,
        value_bytes=2,
        kv_value_bytes=_VALUE_BYTES[computing],
        fraction=1.0,
        max_chunk_tokens=0,
        max_rows=0,
        is_packed=False,
        uses_graphs=False,
    )


def _require_foreseen(args: Sequence[str]) -> None:
    for arg in args:
        if arg.partition("=")[0] in ENGINE_ARGS_UNFORESEEN:
            message = f"{arg.partition('=')[0]} in spec.engine.args changes what is taken"
            raise UnforeseenError(message)


def _given(args: Sequence[str], flag: str) -> str | None:
    """The last value of a flag, written as one argument or two."""
    found = None
    for arg, following in pairwise((*args, "")):
        name, is_joined, value = arg.partition("=")
        if name == flag:
            found = value if is_joined else following
    return found


def _word(args: Sequence[str], flag: str, known: dict[str, Value], default: str) -> Value:
    text = _given(args, flag) or default
    if text not in known:
        raise _not_understood(flag, text)
    return known[text]


def _count(args: Sequence[str], flag: str, default: str) -> int:
    text = _given(args, flag) or _AUTO
    text = default if text == _AUTO else text
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not int(text):
        raise _not_understood(flag, text)
    return int(text)


def _share(args: Sequence[str], flag: str, default: str) -> float:
    text = _given(args, flag) or default
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not _LEAST_SHARE <= share <= 1:
        raise _not_understood(flag, text)
    return share


def _not_understood(flag: str, text: str) -> UnforeseenError:
    return UnforeseenError(f"{flag} {text[:40]!r} in spec.engine.args is not understood")
