"""Owns what the ranks of a tensor-parallel group exchange; decides nothing of when or why.

All ranks call the same methods in the same order with tensors of the same shape and type; a rank
that does not blocks the others until the group's own timeout ends them.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.distributed import ProcessGroup


class Collective(Protocol):
    """``rank`` (0 .. ``size`` - 1) of ``size`` ranks; rank 0 leads.

    Every method waits for all ranks and raises ``RuntimeError`` where one is lost.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Replace ``values`` by their sum over all ranks, bit for bit the same on every rank.

        Ranks are added in their order, so that a row's sum depends on no other row of the tensor.
        """
        ...

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        """[n, c] of each rank beside each other in the order of ranks: [n, c * size], on all."""
        ...

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """Replace ``values`` by rank 0's."""
        ...


_SEGMENTED_BYTES = 1 << 20
"""From here on a tensor is summed in segments: one exchange more, but of fewer bytes."""


class ProcessGroupCollective:
    """A ``Collective`` over a group of processes; contiguous tensors of any type.

    Only bytes travel: nothing is pickled.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.size = group.size()

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """See ``Collective``."""
        if values.nbytes >= _SEGMENTED_BYTES and values.numel() % self.size == 0:
            self._sum_in_segments(values.view(-1))
        else:
            _add_up(self._of_all_ranks(values), values)

    def _sum_in_segments(self, flat: torch.Tensor) -> None:
        """Each rank adds up one segment, and the sums are gathered."""
        received = torch.empty_like(flat)
        self._group.alltoall_base(_as_bytes(received), _as_bytes(flat), [], []).wait()
        segment = torch.empty_like(flat[: flat.numel() // self.size])
        _add_up(received.chunk(self.size), segment)
        parts = list(_as_bytes(flat).chunk(self.size))
        self._group.allgather([parts], [_as_bytes(segment)]).wait()

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        """See ``Collective``."""
        return torch.cat(self._of_all_ranks(values), dim=1)

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """See ``Collective``."""
        if values.numel() > 0:
            self._group.broadcast(_as_bytes(values), 0).wait()

    def _of_all_ranks(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors of all ranks, in their order."""
        gathered = values.new_empty((self.size, *values.shape))
        if values.numel() > 0:
            parts = list(_as_bytes(gathered).chunk(self.size))
            self._group.allgather([parts], [_as_bytes(values)]).wait()
        return gathered.unbind()


def _add_up(summands: Sequence[torch.Tensor], total: torch.Tensor) -> None:
    first, *others = summands
    total.copy_(first)
    for other in others:
        total += other


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The same memory: [bytes] uint8. Raises ``RuntimeError`` if it is not contiguous."""
    return values.view(-1).view(torch.uint8)
