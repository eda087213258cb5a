"""Owns the rotary position embedding's cosine/sine table.

Applies nothing: the kernels rotate.
"""

import math

import torch

from mizzen_worker.layers.rotary_config import RotaryConfig


def inverse_frequencies(config: RotaryConfig) -> torch.Tensor:
    """[head_dim / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.theta**exponents) / config.linear_factor
    if config.frequency_divisors is not None:
        return frequencies / torch.tensor(config.frequency_divisors, dtype=torch.float32)
    if config.llama3 is None:
        return frequencies
    scaling = config.llama3
    wavelengths = 2 * math.pi / frequencies
    low_wavelength = scaling.original_context_length / scaling.low_freq_factor
    high_wavelength = scaling.original_context_length / scaling.high_freq_factor
    smooth = (scaling.original_context_length / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > low_wavelength, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < high_wavelength, frequencies, scaled)


def rotary_table(config: RotaryConfig, context_length: int) -> torch.Tensor:
    """[context_length, 2, head_dim / 2] float32 on the CPU: cosines, then sines."""
    positions = torch.arange(context_length, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config)[None, :]
    return torch.stack([angles.cos(), angles.sin()], dim=1).contiguous()
