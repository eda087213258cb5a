"""Owns what penalised requests have seen of each id, on the device; applies no penalty.

A tally is twice the count in the output, plus 1 where the prompt has the id. Memory is taken when
the first request with a penalty enters, a row of the vocabulary's size for each; a slot keeps its
row until a request without penalties enters it. Invariants: row 0 belongs to nobody; two slots
never share a row.
"""

from collections.abc import Sequence

import numpy as np
import torch

from mizzen_worker.contracts.batch import Int32Array, Int64Array, SlotInit
from mizzen_worker.model_executor.device_link import StagedStep, StepPack


class PenaltyTallies:
    """Tallies of the slots that need them."""

    def __init__(self, max_slots: int, vocab_size: int, device: torch.device) -> None:
        self._row_by_slot = np.zeros(max_slots + 1, dtype=np.int64)
        self._free_rows: list[int] = []
        self.tallies = torch.zeros(1, vocab_size, dtype=torch.int32, device=device)
        """[rows, vocab] int32 device; may be another tensor after ``enter``."""

    def rows_of(self, slots: Int32Array) -> Int64Array:
        """[n] rows of the slots, 0 where a slot counts nothing."""
        return self._row_by_slot[slots]

    def enter(self, init: SlotInit) -> None:
        """Give a slot its row, or take it back; the device follows in ``reset``."""
        row = int(self._row_by_slot[init.slot])
        if init.sampling.has_penalty:
            self._row_by_slot[init.slot] = row or self._take_row()
        elif row:
            self._row_by_slot[init.slot] = 0
            self._free_rows.append(row)

    def _take_row(self) -> int:
        if not self._free_rows:
            num_rows = len(self.tallies)
            num_more = min(num_rows, len(self._row_by_slot) - num_rows)
            more = self.tallies.new_zeros((num_more, self.tallies.shape[1]))
            self.tallies = torch.cat([self.tallies, more])
            self._free_rows.extend(range(num_rows + num_more - 1, num_rows - 1, -1))
        return self._free_rows.pop()

    def pack_resets(self, pack: StepPack, inits: Sequence[SlotInit]) -> None:
        """Add what ``reset`` needs: the histories of the requests that enter."""
        entering = [
            init for init in inits if init.history is not None and init.sampling.has_penalty
        ]
        if not entering:
            return
        rows = self.rows_of(np.array([init.slot for init in entering], dtype=np.int32))
        pack.add_integers("reset_rows", rows)
        for name, parts in (
            ("prompt", [_prompt(init) for init in entering]),
            ("output", [_output(init) for init in entering]),
        ):
            counts = [len(part) for part in parts]
            pack.add_integers(f"{name}_rows", rows.repeat(counts))
            pack.add_integers(f"{name}_ids", np.concatenate(parts))

    def has_resets(self, pack: StepPack) -> bool:
        """Whether ``reset`` has anything to do in a step."""
        return pack.size("reset_rows") > 0

    def reset(self, staged: StagedStep) -> None:
        """Begin to count for the requests that enter."""
        longs = staged.longs
        if "reset_rows" not in longs:
            return
        self.tallies.index_fill_(0, longs["reset_rows"], 0)
        once = torch.ones_like(longs["prompt_ids"], dtype=torch.int32)
        self.tallies[longs["prompt_rows"], longs["prompt_ids"]] = once
        twice = torch.full_like(longs["output_ids"], 2, dtype=torch.int32)
        index = (longs["output_rows"], longs["output_ids"])
        self.tallies.index_put_(index, twice, accumulate=True)

    def count(self, rows: torch.Tensor, tokens: torch.Tensor, is_counted: torch.Tensor) -> None:
        """Count one output token per row, [n] each, where ``is_counted``."""
        index = (rows, tokens)
        self.tallies[index] = self.tallies[index] + 2 * is_counted.int()


def _history(init: SlotInit) -> np.ndarray:
    return np.empty(0, dtype=np.int32) if init.history is None else init.history


def _prompt(init: SlotInit) -> np.ndarray:
    return _history(init)[: init.num_prompt_tokens]


def _output(init: SlotInit) -> np.ndarray:
    return _history(init)[init.num_prompt_tokens :]
