"""Owns the calls of the GPU's kernels that choose tokens; what they mean is in ``sampler.py``."""

from collections.abc import Mapping
from typing import Any

import torch

from mizzen_worker.kernels.gpu.launching import PLAIN
from mizzen_worker.kernels.gpu.sampling import DrawParameters, draw
from mizzen_worker.sampler.sampling_batch import SamplingBatch


def choose_on_gpu(
    logits: torch.Tensor, batch: SamplingBatch, launch: Mapping[str, Any] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, vocab] float32 logits, contiguous in a row, to tokens [n] and validity [n].

    Waits for nothing; the kinds of the rows are derived on the device.
    """
    parameters = DrawParameters(
        temperatures=batch.temperatures.contiguous(),
        top_k=batch.top_k.contiguous(),
        top_p=batch.top_p.contiguous(),
        min_p=batch.min_p.contiguous(),
        seeds=batch.seeds.contiguous(),
        positions=batch.positions.contiguous(),
    )
    return draw(logits, parameters, launch)
