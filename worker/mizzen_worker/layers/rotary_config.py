"""Owns the configuration of the rotary position embedding; computes nothing.

Apart from ``rotary.py``, which needs torch: facts of a model are read without it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Frequency-dependent scaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryConfig:
    """``theta`` is the base; ``linear_factor`` divides positions (1 means no linear scaling).

    ``frequency_divisors`` [head_dim / 2] is the form in which GGUF files store Llama 3 scaling.
    """

    head_dim: int
    theta: float
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None
    frequency_divisors: tuple[float, ...] | None = None
