"""Owns what changes logits before a token is chosen: bias, penalties, forbidden ids; in place.

Order: bias, then repetition, frequency and presence penalty, then forbidden ids. Rows that none of
them names are not touched.
"""

import torch

from mizzen_worker.kernels.gpu.penalties import PenalisedRows, penalise
from mizzen_worker.sampler.native_choice import penalise_natively
from mizzen_worker.sampler.sampling_batch import LogitBias, Penalties, SamplingBatch


def adjust(logits: torch.Tensor, batch: SamplingBatch, instruction_set: str | None = None) -> None:
    """Change [n, vocab] float32 logits as their rows' parameters say.

    ``instruction_set`` is one of the native library's, for logits on the CPU; None takes torch.
    """
    if batch.bias is not None:
        _add_bias(logits, batch.bias)
    if batch.penalties is not None:
        if logits.device.type != "cpu":
            penalise_on_gpu(logits, batch.penalties)
        elif instruction_set is None:
            _penalise(logits, batch.penalties)
        else:
            penalise_natively(logits, batch.penalties, instruction_set)
    if batch.forbidden is not None:
        forbidden = batch.forbidden
        nothing = torch.full_like(forbidden.ids, float("-inf"), dtype=logits.dtype)
        logits.index_put_((forbidden.rows, forbidden.ids), nothing)


def _add_bias(logits: torch.Tensor, bias: LogitBias) -> None:
    index = (bias.rows, bias.ids)
    logits.index_put_(index, logits[index] + bias.values)


def penalise_on_gpu(logits: torch.Tensor, penalties: Penalties) -> None:
    """Change [n, vocab] float32 logits, contiguous in a row, in place; waits for nothing."""
    rows = PenalisedRows(
        rows=penalties.rows,
        tally_rows=penalties.tally_rows,
        tallies=penalties.tallies,
        repetition=penalties.repetition,
        frequency=penalties.frequency,
        presence=penalties.presence,
    )
    penalise(logits, rows)


def _penalise(logits: torch.Tensor, penalties: Penalties) -> None:
    # One row after the other stays in the cache.
    for rows, tally_rows, repetition, frequency, presence in zip(
        torch.split(penalties.rows, 1),
        torch.split(penalties.tally_rows, 1),
        torch.split(penalties.repetition[:, None], 1),
        torch.split(penalties.frequency[:, None], 1),
        torch.split(penalties.presence[:, None], 1),
        strict=True,
    ):
        tallies = penalties.tallies[tally_rows]
        values = logits[rows]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(tallies > 0, repeated, values)
        counts = tallies >> 1
        values -= counts * frequency + (counts > 0) * presence
        logits[rows] = values
