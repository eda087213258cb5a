"""Owns the calls of the native kernels that penalise logits and choose tokens on a CPU.

What they mean is in ``adjustments.py`` and ``sampler.py``; tests hold them against each other.
"""

import numpy as np
import torch

from mizzen_worker.kernels.native_library import choose_tokens, penalise_rows
from mizzen_worker.sampler.sampling_batch import ChoiceKind, Penalties, SamplingBatch


def choose_natively(
    logits: torch.Tensor, batch: SamplingBatch, instruction_set: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, vocab] float32 logits on the CPU, contiguous in a row, to tokens [n] and validity [n]."""
    num_rows, vocab_size = logits.shape
    kinds = torch.zeros(num_rows, dtype=torch.int64)
    kinds[batch.plain_rows] = ChoiceKind.PLAIN
    kinds[batch.filtered_rows] = ChoiceKind.FILTERED
    tokens = torch.empty(num_rows, dtype=torch.int64)
    is_valid = torch.empty(num_rows, dtype=torch.bool)
    columns = (
        kinds,
        batch.temperatures.contiguous(),
        batch.top_k.contiguous(),
        batch.top_p.contiguous(),
        batch.min_p.contiguous(),
        batch.seeds.contiguous(),
        batch.positions.contiguous(),
        tokens,
        is_valid,
    )
    choice = (
        logits.data_ptr(),
        logits.stride(0),
        vocab_size,
        num_rows,
        *(column.data_ptr() for column in columns),
    )
    choose_tokens(instruction_set, np.array(choice, dtype=np.int64))
    return tokens, is_valid


def penalise_natively(logits: torch.Tensor, penalties: Penalties, instruction_set: str) -> None:
    """Change [n, vocab] float32 logits on the CPU, contiguous in a row, in place."""
    columns = (
        penalties.rows.contiguous(),
        penalties.tally_rows.contiguous(),
        penalties.tallies.contiguous(),
        penalties.repetition.contiguous(),
        penalties.frequency.contiguous(),
        penalties.presence.contiguous(),
    )
    words = (
        logits.data_ptr(),
        logits.stride(0),
        logits.shape[1],
        len(penalties.rows),
        *(column.data_ptr() for column in columns),
    )
    penalise_rows(instruction_set, np.array(words, dtype=np.int64))
