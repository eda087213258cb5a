"""Owns the sampling parameters of the rows of one step, as tensors; chooses no token.

The host knows which rows need which treatment, so rows come in groups and nothing is asked of the
device. ``rows`` of a group are indices of the step's sampled rows.
"""

import enum
from dataclasses import dataclass

import torch


class ChoiceKind(enum.IntEnum):
    """How a row's token is chosen; as in sampling.h."""

    GREEDY = 0
    PLAIN = 1
    """Drawn from the whole vocabulary."""
    FILTERED = 2
    """Drawn from what top-k, top-p and min-p leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBias:
    """Entry i adds ``values[i]`` to the logit of ``ids[i]`` in row ``rows[i]``."""

    rows: torch.Tensor
    """[num_entries] int64."""
    ids: torch.Tensor
    """[num_entries] int64."""
    values: torch.Tensor
    """[num_entries] float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Rows with a penalty; what they have seen is in ``tallies``."""

    rows: torch.Tensor
    """[n] int64."""
    tally_rows: torch.Tensor
    """[n] int64: rows of ``tallies``."""
    tallies: torch.Tensor
    """[any, vocab] int32: twice the count in the output, plus 1 where the prompt has the id."""
    repetition: torch.Tensor
    """[n] float32; 1 is none."""
    frequency: torch.Tensor
    """[n] float32."""
    presence: torch.Tensor
    """[n] float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForbiddenIds:
    """Entry i forbids ``ids[i]`` in row ``rows[i]``."""

    rows: torch.Tensor
    """[num_entries] int64."""
    ids: torch.Tensor
    """[num_entries] int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """One entry per sampled row; all on the device of the logits."""

    temperatures: torch.Tensor
    """[n] float32; greedy rows hold anything."""
    top_k: torch.Tensor
    """[n] int64, on a GPU int32; 0 means no limit."""
    top_p: torch.Tensor
    """[n] float32."""
    min_p: torch.Tensor
    """[n] float32."""
    seeds: torch.Tensor
    """[n] int64."""
    positions: torch.Tensor
    """[n] int64: index of the token to choose in prompt + output."""
    plain_rows: torch.Tensor
    """[any] int64: rows of kind PLAIN."""
    filtered_rows: torch.Tensor
    """[any] int64: rows of kind FILTERED. Rows in neither group are GREEDY."""
    bias: LogitBias | None = None
    penalties: Penalties | None = None
    forbidden: ForbiddenIds | None = None

    @property
    def is_adjusted(self) -> bool:
        """Whether any row's logits are changed before a token is chosen."""
        return not (self.bias is None and self.penalties is None and self.forbidden is None)
