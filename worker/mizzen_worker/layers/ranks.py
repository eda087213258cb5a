"""Owns what operations do where a model is divided among ranks; computes no layer itself.

Hidden rows are whole and the same on every rank, to the last bit; a rank has its own heads, inner
columns and rows of the vocabulary. Sums are over the ranks of a ``Collective``.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from mizzen_worker.layers.collective import Collective


class Ranks(Protocol):
    """The ranks that compute a model together; all of them call the same in the same order."""

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        ...

    def own_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[n] int64: which of the rank's rows to embed; any row for other ranks' tokens."""
        ...

    def sum_embedded(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Make of each rank's rows of ``own_ids``, [n, width], the embedding; in place."""
        ...

    def sum(self, values: torch.Tensor) -> None:
        """See ``Collective.sum_over_ranks``."""
        ...

    def whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """[n, own rows of the vocabulary] of every rank to [n, vocab]."""
        ...


class LoneRank:
    """Implements ``Ranks`` for one that has everything."""

    is_leader = True

    def own_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See ``Ranks``."""
        return token_ids

    def sum_embedded(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """See ``Ranks``; these are all."""

    def sum(self, values: torch.Tensor) -> None:
        """See ``Ranks``; these are all."""

    def whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ranks``."""
        return logits


LONE_RANK = LoneRank()


class JoinedRanks:
    """Implements ``Ranks`` over a ``Collective``.

    ``own`` are this rank's rows of a vocabulary of ``vocab_size``: as many as every rank has, but
    for the last ones, which may have fewer.
    """

    def __init__(self, collective: Collective, own: range, vocab_size: int) -> None:
        self._collective = collective
        self._own = own
        self._vocab_size = vocab_size
        self._most_rows = -(-vocab_size // collective.size)
        self.is_leader = collective.rank == 0

    def own_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See ``Ranks``."""
        return (token_ids - self._own.start).masked_fill_(self._is_foreign(token_ids), 0)

    def sum_embedded(self, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
        """See ``Ranks``."""
        rows.masked_fill_(self._is_foreign(token_ids)[:, None], 0)
        self.sum(rows)

    def sum(self, values: torch.Tensor) -> None:
        """See ``Ranks``."""
        self._collective.sum_over_ranks(values)

    def whole_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ranks``."""
        padded = F.pad(logits, (0, self._most_rows - len(self._own))).contiguous()
        return self._collective.gather_columns(padded)[:, : self._vocab_size]

    @property
    def own(self) -> range:
        """This rank's rows of the vocabulary."""
        return self._own

    @property
    def is_even(self) -> bool:
        """Whether all ranks have as many rows of the vocabulary."""
        return self._vocab_size % self._collective.size == 0

    def whole_best(
        self, values: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best of each block of the rank's rows, as of ``HeadOutput``, to those of all ranks.

        Ids count the rank's own rows. Only where ``is_even``: blocks are as many on every rank.
        """
        if not self.is_even:
            message = f"a vocabulary of {self._vocab_size} has no equal blocks on all ranks"
            raise ValueError(message)
        # One exchange, in the columns [values, ids] of each rank.
        named = torch.cat([values, (ids + self._own.start).view(torch.float32)], dim=1)
        every = self._collective.gather_columns(named).view(len(values), -1, 2, values.shape[1])
        best, best_ids = every.unbind(2)
        return best.flatten(1).contiguous(), best_ids.flatten(1).contiguous().view(torch.int32)

    def _is_foreign(self, token_ids: torch.Tensor) -> torch.Tensor:
        return (token_ids < self._own.start) | (token_ids >= self._own.stop)
