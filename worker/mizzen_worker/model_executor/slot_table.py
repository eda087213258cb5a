"""Owns what sampling needs of every slot, on the device; a mirror, ``SlotSampling`` is the owner.

Only captured steps read it: their kernels find a row's parameters by its slot, so a decode step
brings nothing but slots and positions. Steps that are not captured, and with them a CPU's, bring
the parameters of their rows along, which there costs less than gathering tensors would. Invariant:
the tensors never move. Slots change when requests enter, which is never in a captured step.
"""

from dataclasses import dataclass

import torch

from mizzen_worker.contracts.batch import Float32Array, Int32Array, Int64Array
from mizzen_worker.model_executor.device_link import StagedStep, StepPack

MAX_STOP_IDS = 16
"""More of them are seldom, and then the step is not a captured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotColumns:
    """Parameters of n slots on the host.

    ``slots`` [n] int32; ``integers`` [2, n] int32: top-k (0 means no limit), max tokens; ``reals``
    [3, n] float32: temperature, top-p, min-p; ``stop_ids`` [n, MAX_STOP_IDS] int32.
    """

    slots: Int32Array
    seeds: Int64Array
    integers: Int32Array
    reals: Float32Array
    stop_ids: Int32Array


class SlotTable:
    """Columns indexed by slot."""

    def __init__(self, max_slots: int, device: torch.device) -> None:
        rows = max_slots + 1
        self.temperatures, self.top_p, self.min_p = (
            torch.zeros(rows, dtype=torch.float32, device=device) for _ in range(3)
        )
        """[slots] float32 each; slot 0 is greedy, so that padding costs nothing."""
        self.top_k, self.max_tokens = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2)
        )
        """[slots] int32 each; a top-k of 0 means no limit."""
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        """[slots] int64."""
        self.stop_ids = torch.full((rows, MAX_STOP_IDS), -1, dtype=torch.int32, device=device)
        """[slots, MAX_STOP_IDS] int32, -1 where there is none."""

    def pack(self, pack: StepPack, columns: SlotColumns) -> None:
        """Add what ``change`` needs."""
        pack.add_integers("table_slots", columns.slots)
        pack.add_wides("table_seeds", columns.seeds)
        pack.add_integers("table_integers", columns.integers.ravel())
        pack.add_integers("table_stop_ids", columns.stop_ids.ravel())
        pack.add_reals("table_reals", columns.reals.ravel())

    def change(self, staged: StagedStep) -> None:
        """Let requests enter their slots."""
        if "table_seeds" not in staged.longs:
            return
        slots = staged.longs["table_slots"]
        self.seeds.index_copy_(0, slots, staged.longs["table_seeds"])
        integers = staged.integers["table_integers"].view(2, -1)
        for column, values in zip((self.top_k, self.max_tokens), integers, strict=True):
            column.index_copy_(0, slots, values)
        reals = staged.reals["table_reals"].view(3, -1)
        columns = (self.temperatures, self.top_p, self.min_p)
        for column, numbers in zip(columns, reals, strict=True):
            column.index_copy_(0, slots, numbers)
        stop_ids = staged.integers["table_stop_ids"].view(-1, MAX_STOP_IDS)
        self.stop_ids.index_copy_(0, slots, stop_ids)
