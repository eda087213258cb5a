"""Owns what the ranks of a tensor-parallel group exchange; decides nothing of when or why.

All ranks call the same methods in the same order with tensors of the same shape and type; a rank
that does not blocks the others until the group's own timeout ends them.
"""

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch
from torch._C._distributed_c10d import (  # their public names are not typed as exported
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ProcessGroup,
    Work,
)


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
_PAIR = 2


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
            _add_up(self._of_all_ranks(values).unbind(), values)

    def _sum_in_segments(self, flat: torch.Tensor) -> None:
        """Each rank adds up one segment, and the sums are gathered."""
        received = torch.empty_like(flat)
        self._swap(_as_bytes(received), _as_bytes(flat))
        segment = torch.empty_like(flat[: flat.numel() // self.size])
        _add_up(received.chunk(self.size), segment)
        self._gather(_as_bytes(flat), _as_bytes(segment))

    def gather_columns(self, values: torch.Tensor) -> torch.Tensor:
        """See ``Collective``."""
        return torch.cat(self._of_all_ranks(values).unbind(), dim=1)

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """See ``Collective``."""
        if values.numel() > 0:
            self._group.broadcast(_as_bytes(values), 0).wait()

    def _of_all_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, in their order: [size, ...]."""
        gathered = values.new_empty((self.size, *values.shape))
        if values.numel() > 0:
            self._gather(_as_bytes(gathered), _as_bytes(values))
        return gathered

    def _gather(self, every: torch.Tensor, own: torch.Tensor) -> None:
        self._group.allgather([list(every.chunk(self.size))], [own]).wait()

    def _swap(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        self._group.alltoall_base(received, sent, [], []).wait()


class NcclCollective(ProcessGroupCollective):
    """A ``Collective`` of one GPU a rank, over a group that has NCCL for them.

    Everything is queued on the current stream and nothing waits there for the host, so a graph may
    capture it. Tensors of the host are exchanged too, by the group's other backend.
    """

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """See ``Collective``; of two summands there is one order only, whichever NCCL takes."""
        if self.size != _PAIR:
            super().sum_over_ranks(values)
        elif values.numel() > 0:
            options = AllreduceOptions()
            options.asyncOp = False
            _finish(self._group.allreduce([values], options))

    def copy_from_leader(self, values: torch.Tensor) -> None:
        """See ``Collective``."""
        if values.numel() > 0:
            options = BroadcastOptions()
            options.rootRank = 0
            options.rootTensor = 0
            options.asyncOp = False
            _finish(self._group.broadcast([_as_bytes(values)], options))

    def warm_up(self, device: torch.device) -> None:
        """Connect the ranks, which a captured exchange cannot do; waits for all of them."""
        for num_values in (_PAIR * self.size, _SEGMENTED_BYTES // self.size * self.size):
            values = torch.ones(1, num_values, dtype=torch.bfloat16, device=device)
            self.sum_over_ranks(values)
            self.gather_columns(values)
            self.copy_from_leader(values)
        torch.cuda.synchronize(device)

    def abort(self) -> None:
        """Give up what GPUs wait for, so that the process can end; nothing can follow."""
        with contextlib.suppress(RuntimeError):
            self._group._get_backend(torch.device("cuda")).abort()  # noqa: SLF001

    def _gather(self, every: torch.Tensor, own: torch.Tensor) -> None:
        options = AllgatherOptions()
        options.asyncOp = False
        _finish(self._group._allgather_base(every, own, options))  # noqa: SLF001

    def _swap(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        options = AllToAllOptions()
        options.asyncOp = False
        _finish(self._group.alltoall_base(received, sent, [], [], options))


def _finish(work: Work | None) -> None:
    """Nothing on a GPU: what is queued on the current stream is in order there."""
    if work is not None:
        work.wait()


def _add_up(summands: Sequence[torch.Tensor], total: torch.Tensor) -> None:
    first, *others = summands
    total.copy_(first)
    for other in others:
        total += other


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The same memory: [bytes] uint8. Raises ``RuntimeError`` if it is not contiguous."""
    return values.view(-1).view(torch.uint8)
