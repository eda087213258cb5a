"""Owns the device state of every request slot; runs no model and chooses no token.

Invariants: slot 0 and page 0 belong to nobody, and slot 0 is always finished, so that rows which
only fill a batch up can name it; a slot's row of the page table is only changed by page writes;
``finished`` mirrors the scheduler's own rule (EOS or stop id, or the last allowed token). A decode
row of a finished slot is a masked no-op: it writes into the sink page and changes nothing here.
"""

from collections.abc import Sequence

import numpy as np
import torch

from mizzen_worker.contracts.batch import (
    INVALID_TOKEN,
    NO_TOKEN,
    PageWrite,
    RunnerLimits,
    SlotInit,
)
from mizzen_worker.kernels.gpu.note_tokens import SampledEnds, note_tokens
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.model_executor.device_link import StagedStep, StepPack
from mizzen_worker.model_executor.penalty_tallies import PenaltyTallies
from mizzen_worker.sampler.sampler import Sampled


class SlotState:
    """Tensors indexed by slot."""

    def __init__(self, limits: RunnerLimits, device: torch.device) -> None:
        rows = limits.max_slots + 1
        max_pages = pages_for_tokens(limits.context_length, page_size=limits.page_size)
        self.page_table = torch.zeros(rows, max_pages, dtype=torch.int32, device=device)
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self.finished[0] = True
        self.tallies = PenaltyTallies(limits.max_slots, limits.vocab_size, device)

    def pack_changes(
        self, pack: StepPack, inits: Sequence[SlotInit], writes: Sequence[PageWrite]
    ) -> None:
        """Add what ``change`` needs."""
        if inits:
            pack.add_integers("entered_slots", np.array([init.slot for init in inits]))
            self.tallies.pack_resets(pack, inits)
        if writes:
            counts = [len(write.pages) for write in writes]
            pack.add_integers("write_slots", np.repeat([write.slot for write in writes], counts))
            columns = [
                np.arange(write.first_page, write.first_page + count)
                for write, count in zip(writes, counts, strict=True)
            ]
            pack.add_integers("write_columns", np.concatenate(columns))
            pack.add_integers("write_pages", np.concatenate([write.pages for write in writes]))

    def change(self, staged: StagedStep) -> None:
        """Let requests enter their slots, and pages their rows."""
        longs = staged.longs
        if "entered_slots" in longs:
            self.finished.index_fill_(0, longs["entered_slots"], value=False)
            self.tallies.reset(staged)
        if "write_slots" in longs:
            index = (longs["write_slots"], longs["write_columns"])
            self.page_table[index] = longs["write_pages"].int()

    def record(self, staged: StagedStep, sampled: Sampled) -> torch.Tensor:
        """Make the chosen tokens their slots' last ones, and note which requests end with them.

        Returns [2, n] int64: the ids to report, and 1 where the request has ended.
        """
        longs = staged.longs
        ends = SampledEnds(
            slots=longs["sampled_slots"],
            positions=longs["sample_positions"],
            max_tokens=longs["integers"].view(2, -1)[1],
            stop_ids=longs["stop_ids"].view(len(sampled.tokens), -1),
        )
        if self.finished.device.type == "cpu":
            outcome = self._record(ends, sampled)
        else:
            tokens, is_valid = sampled.tokens, sampled.is_valid
            outcome = note_tokens(ends, tokens, is_valid, self.finished, self.last_tokens)
        if "penalty_rows" in longs:
            rows = longs["penalty_rows"]
            is_taken = outcome[0, rows] >= 0
            self.tallies.count(longs["tally_rows"], sampled.tokens[rows], is_taken)
        return outcome

    def _record(self, ends: SampledEnds, sampled: Sampled) -> torch.Tensor:
        """What ``note_tokens`` does, in torch."""
        slots, tokens = ends.slots, sampled.tokens
        was_finished = self.finished[slots]
        is_taken = sampled.is_valid & ~was_finished
        is_last = ends.positions + 1 >= ends.max_tokens
        is_stop = (ends.stop_ids == tokens[:, None]).any(-1)
        is_finished = was_finished | ~sampled.is_valid | is_last | is_stop
        self.finished[slots] = is_finished
        self.last_tokens[slots] = torch.where(is_taken, tokens, self.last_tokens[slots])
        unusable = torch.full_like(tokens, INVALID_TOKEN).masked_fill_(was_finished, NO_TOKEN)
        return torch.stack([torch.where(is_taken, tokens, unusable), is_finished.long()])
