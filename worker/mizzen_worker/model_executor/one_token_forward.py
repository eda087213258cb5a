"""Owns the batch-invariant form of another forward: one token per call; computes nothing itself.

Every call's shapes, and with them the order of all additions, follow from the token's position
alone, so its logits and its keys and values are the same to the last bit in any batch, any chunk
and behind any cached prefix. Each token reads all weights once: as slow as decoding one stream.
On a GPU it asks which tokens are wanted, so that a launch waits for the step before it.
"""

from collections.abc import Iterator

import numpy as np
import torch

from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.forward import Forward


class OneTokenForward:
    """Runs tokens of a row in order, each as a step of its own."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """See ``Forward``."""
        wanted = batch.sampled_tokens.tolist()
        is_wanted = set(wanted)
        logits = [self._forward.run(one) for one in _steps(batch, is_wanted)]
        place_by_token = {token: place for place, token in enumerate(sorted(is_wanted))}
        order = [place_by_token[token] for token in wanted]
        return torch.cat(logits)[torch.tensor(order, dtype=torch.int64, device=logits[0].device)]


def _steps(batch: ForwardBatch, is_wanted: set[int]) -> Iterator[ForwardBatch]:
    nothing = batch.sampled_tokens[:0]
    for row in range(batch.num_rows):
        first, after = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
        start = int(batch.row_lengths[row]) - (after - first)
        for token in range(first, after):
            length = start + token - first + 1
            yield ForwardBatch(
                token_ids=batch.token_ids[token : token + 1].clone(),
                positions=batch.positions[token : token + 1].clone(),
                kv_locations=batch.kv_locations[token : token + 1].clone(),
                page_table=batch.page_table,
                row_slots=batch.row_slots[row : row + 1],
                sampled_tokens=torch.zeros_like(batch.sampled_tokens[:1])
                if token in is_wanted
                else nothing,
                device_row_starts=_on(batch, [0, 1]),
                device_row_lengths=_on(batch, [length]),
                row_starts=np.array([0, 1], dtype=np.int32),
                row_lengths=np.array([length], dtype=np.int32),
                page_size=batch.page_size,
            )


def _on(batch: ForwardBatch, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=batch.row_slots.device)
