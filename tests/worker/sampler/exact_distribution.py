"""What the sampler must do, written the slow way in float64 and in the contract's order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mizzen_worker.sampler.sampling_batch import (
    ForbiddenIds,
    LogitBias,
    Penalties,
    SamplingBatch,
)


@dataclass(frozen=True)
class Row:
    """Parameters of one row, and the ids it has seen."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1
    position: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    bias: dict[int, float] = field(default_factory=dict)
    forbidden: Sequence[int] = ()

    @property
    def is_penalised(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)

    @property
    def is_filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def exact_logits(logits: np.ndarray, row: Row) -> np.ndarray:
    """Bias, penalties, forbidden ids: float64."""
    changed = logits.astype(np.float64)
    for token, value in row.bias.items():
        changed[token] += value
    for token in range(len(changed)):
        if token in row.prompt or token in row.output:
            scale = 1 / row.repetition if changed[token] > 0 else row.repetition
            changed[token] *= scale
        count = list(row.output).count(token)
        changed[token] -= count * row.frequency + (count > 0) * row.presence
    changed[list(row.forbidden)] = -np.inf
    return changed


def exact_distribution(logits: np.ndarray, row: Row) -> np.ndarray:
    """Probability of each id: float64."""
    changed = exact_logits(logits, row)
    if row.temperature == 0:
        return np.eye(len(changed))[changed.argmax()]
    scaled = changed / row.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if row.top_k:
        weights[order[row.top_k :]] = 0
    weights /= weights.sum()
    before = np.cumsum(weights[order]) - weights[order]
    excluded = order[before >= row.top_p]
    best = weights.max()
    weights[[token for token in excluded if token != order[0]]] = 0
    weights[weights < row.min_p * best] = 0
    return weights / weights.sum()


def _pairs(groups: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [row for row, ids in enumerate(groups) for _ in ids]
    ids = [token for group in groups for token in group]
    return torch.tensor(rows), torch.tensor(ids)


def _tallies(rows: Sequence[Row], vocab_size: int) -> torch.Tensor:
    tallies = np.zeros((len(rows), vocab_size), dtype=np.int32)
    for index, row in enumerate(rows):
        tallies[index, list(row.prompt)] = 1
        np.add.at(tallies[index], list(row.output), 2)
    return torch.from_numpy(tallies)


def sampling_batch(rows: Sequence[Row], vocab_size: int) -> SamplingBatch:
    """The same rows as the sampler takes them."""

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([vars(row)[name] for row in rows], dtype=dtype)

    def chosen(flags: Sequence[bool]) -> torch.Tensor:
        return torch.tensor([index for index, flag in enumerate(flags) if flag], dtype=torch.int64)

    bias = penalties = forbidden = None
    penalised = chosen([row.is_penalised for row in rows])
    if len(penalised):
        penalties = Penalties(
            rows=penalised,
            tally_rows=penalised,
            tallies=_tallies(rows, vocab_size),
            repetition=column("repetition", torch.float32)[penalised],
            frequency=column("frequency", torch.float32)[penalised],
            presence=column("presence", torch.float32)[penalised],
        )
    if any(row.bias for row in rows):
        index, ids = _pairs([list(row.bias) for row in rows])
        values = torch.tensor([value for row in rows for value in row.bias.values()])
        bias = LogitBias(rows=index, ids=ids, values=values)
    if any(row.forbidden for row in rows):
        index, ids = _pairs([row.forbidden for row in rows])
        forbidden = ForbiddenIds(rows=index, ids=ids)
    return SamplingBatch(
        temperatures=column("temperature", torch.float32),
        top_k=column("top_k", torch.int64),
        top_p=column("top_p", torch.float32),
        min_p=column("min_p", torch.float32),
        seeds=column("seed", torch.int64),
        positions=column("position", torch.int64),
        plain_rows=chosen([row.temperature > 0 and not row.is_filtered for row in rows]),
        filtered_rows=chosen([row.temperature > 0 and row.is_filtered for row in rows]),
        bias=bias,
        penalties=penalties,
        forbidden=forbidden,
    )
