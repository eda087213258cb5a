"""Lets interpreted kernels convert to and from FP8 as a GPU does, for tests without one.

Triton's interpreter loses the carry of a mantissa that is rounded up, which halves the number.
"""

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH_BY_TYPE = {
    tl.float32: torch.float32,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float8e4nv: torch.float8_e4m3fn,
}
_BITS_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@pytest.fixture
def exact_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions of FP8 are torch's, which round to the nearest, ties to even."""
    theirs = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source, target):
            return theirs(values, source, target, rounding)
        size = source.primitive_bitwidth // 8
        bits = torch.from_numpy(np.frombuffer(values.tobytes(), dtype=f"u{size}").copy())
        given = bits.view(_BITS_BY_SIZE[size]).view(_TORCH_BY_TYPE[source])
        converted = given.to(_TORCH_BY_TYPE[target])
        size = target.primitive_bitwidth // 8
        found = converted.view(_BITS_BY_SIZE[size]).numpy().view(f"u{size}")
        return found.reshape(values.shape)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
