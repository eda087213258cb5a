"""Owns the calls of the GPU's kernels that choose tokens; what they mean is in ``sampler.py``."""

import torch

from mizzen_worker.kernels.gpu.launching import dependent
from mizzen_worker.kernels.gpu.sampling import DrawParameters, draw
from mizzen_worker.sampler.sampling_batch import SamplingBatch


def choose_on_gpu(logits: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, vocab] float32 logits, contiguous in a row, to tokens [n] and validity [n].

    Waits for nothing; the kinds of the rows are derived on the device. Types and launch are those
    of captured steps, so the kernels are compiled once.
    """
    parameters = DrawParameters(
        temperatures=batch.temperatures.contiguous(),
        top_k=batch.top_k.int().contiguous(),
        top_p=batch.top_p.contiguous(),
        min_p=batch.min_p.contiguous(),
        seeds=batch.seeds.contiguous(),
        positions=batch.positions.contiguous(),
    )
    return draw(logits, parameters, dependent())
