"""Owns the device state of every request slot; runs no model and chooses no token.

Invariants: slot 0 and page 0 belong to nobody; a slot's row of the page table is only changed by
page writes; ``finished`` mirrors the scheduler's own rule (EOS or stop id, or the last allowed
token), so that a row launched once more after its end writes into the sink page.
"""

from collections.abc import Sequence

import numpy as np
import torch

from mizzen_worker.contracts.batch import PageWrite, RunnerLimits, SlotInit
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.sampler.sampling_batch import SamplingBatch

_INITIAL_STOP_WIDTH = 8


class SlotState:
    """Tensors indexed by slot."""

    def __init__(self, limits: RunnerLimits, device: torch.device) -> None:
        rows = limits.max_slots + 1
        max_pages = -(-limits.context_length // limits.page_size)
        self._device = device
        self.page_table = torch.zeros(rows, max_pages, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self._temperatures = torch.zeros(rows, dtype=torch.float32, device=device)
        self._top_p = torch.ones(rows, dtype=torch.float32, device=device)
        self._min_p = torch.zeros(rows, dtype=torch.float32, device=device)
        self._seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._prompt_lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self._max_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._min_new = torch.zeros(rows, dtype=torch.int64, device=device)
        self._stop_ids = torch.full(
            (rows, _INITIAL_STOP_WIDTH), -1, dtype=torch.int64, device=device
        )
        # What the host knows without asking the device, [rows] bool.
        self._is_greedy = np.ones(rows, dtype=np.bool_)
        self._has_min_new = np.zeros(rows, dtype=np.bool_)

    def enter(self, init: SlotInit) -> None:
        """Set everything of one slot for a new request."""
        slot, sampling = init.slot, init.sampling
        stop_ids = sorted({*init.eos_token_ids, *sampling.stop_token_ids})
        self._widen_stop_ids(len(stop_ids))
        self.last_tokens[slot] = 0
        self.finished[slot] = False
        self._temperatures[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seeds[slot] = _as_int64(sampling.seed)
        self._top_k[slot] = sampling.top_k
        self._prompt_lengths[slot] = init.num_prompt_tokens
        self._max_tokens[slot] = init.max_tokens
        self._min_new[slot] = sampling.min_new_tokens
        self._stop_ids[slot] = -1
        if stop_ids:
            self._stop_ids[slot, : len(stop_ids)] = torch.tensor(stop_ids)
        self._is_greedy[slot] = sampling.temperature == 0
        self._has_min_new[slot] = sampling.min_new_tokens > 0

    def write_pages(self, write: PageWrite) -> None:
        """Enter pages into a slot's row."""
        pages = torch.from_numpy(write.pages.astype(np.int32, copy=False)).to(self._device)
        self.page_table[write.slot, write.first_page : write.first_page + len(pages)] = pages

    def sampling_batch(self, slots: Sequence[int], batch: ForwardBatch) -> SamplingBatch:
        """Parameters of the sampled rows' slots, at the positions of the tokens to choose."""
        index = torch.tensor(slots, dtype=torch.int64, device=self._device)
        positions = batch.positions[batch.sampled_tokens] + 1
        generated = positions - self._prompt_lengths[index]
        is_early = generated < self._min_new[index]
        return SamplingBatch(
            temperatures=self._temperatures[index],
            top_k=self._top_k[index],
            top_p=self._top_p[index],
            min_p=self._min_p[index],
            seeds=self._seeds[index],
            positions=positions,
            forbidden=torch.where(is_early[:, None], self._stop_ids[index], -1),
            is_all_greedy=bool(self._is_greedy[slots].all()),
            has_forbidden=bool(self._has_min_new[slots].any()),
        )

    def record(
        self, slots: Sequence[int], batch: ForwardBatch, tokens: torch.Tensor
    ) -> torch.Tensor:
        """Make the chosen tokens their slots' last ones; tell which requests ended, [n] bool."""
        index = torch.tensor(slots, dtype=torch.int64, device=self._device)
        lengths = batch.positions[batch.sampled_tokens] + 2
        is_stop = (self._stop_ids[index] == tokens[:, None]).any(-1)
        self.last_tokens[index] = tokens
        self.finished[index] |= is_stop | (lengths >= self._max_tokens[index])
        return self.finished[index]

    def _widen_stop_ids(self, width: int) -> None:
        missing = width - self._stop_ids.shape[1]
        if missing > 0:
            self._stop_ids = torch.nn.functional.pad(self._stop_ids, (0, missing), value=-1)


def _as_int64(seed: int) -> int:
    """The low 64 bits of a seed as a signed number."""
    low = seed & 0xFFFF_FFFF_FFFF_FFFF
    return low - (1 << 64) if low >= 1 << 63 else low
