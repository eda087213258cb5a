"""Owns what is left of a step once it is launched: to wait for its numbers and name them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import (
    INVALID_TOKEN,
    NO_TOKEN,
    Int64Array,
    StepResult,
    TokenScores,
)
from mizzen_worker.contracts.errors import DeviceError
from mizzen_worker.model_executor.device_link import PendingDownload

_MAX_INVALID_ROWS = 8


class FinitenessWatch:
    """Tells one request's bad numbers from a model or device that gives no good ones.

    A lone prompt may overflow, and then only its request ends. When many rows one after the other
    had no finite logits and none had, the weights are damaged or the device is faulty.
    """

    def __init__(self) -> None:
        self._num_invalid = 0

    def observe(self, step: int, sampled_ids: Sequence[int]) -> None:
        """Take note of a settled step; raises ``DeviceError``."""
        if any(token >= 0 for token in sampled_ids):
            self._num_invalid = 0
            return
        self._num_invalid += sum(token == INVALID_TOKEN for token in sampled_ids)
        if self._num_invalid >= _MAX_INVALID_ROWS:
            message = (
                f"step {step}: the last {self._num_invalid} rows had no finite logits: the weights "
                "are damaged or the device is faulty"
            )
            raise DeviceError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLayout:
    """Which entries of the downloaded scores belong to which row."""

    num_sampled: int
    sampled: Int64Array | None
    """Indices of the sampled rows that asked, in the order of their scores; None where none did."""
    prompt: tuple[tuple[int, int], ...]
    """(row of the step, number of its scores) in the order of their scores, which follow."""


class LaunchedStep:
    """A step whose numbers are on their way to the host."""

    def __init__(
        self, step: int, download: PendingDownload, layout: ScoreLayout, watch: FinitenessWatch
    ) -> None:
        self._step = step
        self._download = download
        self._layout = layout
        self._watch = watch

    def settle(self) -> StepResult:
        """See ``PendingStep``."""
        try:
            outcome, *scores = self._download.wait()
        except RuntimeError as error:
            message = f"step {self._step} failed on the device: {error}"
            raise DeviceError(message) from error
        sampled_ids = outcome[0].astype(np.int32)
        self._watch.observe(self._step, sampled_ids.tolist())
        sampled_scores: TokenScores | None = None
        prompt_scores: tuple[TokenScores, ...] = ()
        if scores:
            logprobs, top_ids, top_logprobs = scores
            every = TokenScores(logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)
            sampled_scores, prompt_scores = _assign(every, self._layout)
        return StepResult(
            step=self._step,
            sampled_ids=sampled_ids,
            is_finished=outcome[1].astype(np.bool_),
            sampled_scores=sampled_scores,
            prompt_scores=prompt_scores,
        )


def _assign(
    scores: TokenScores, layout: ScoreLayout
) -> tuple[TokenScores | None, tuple[TokenScores, ...]]:
    num_asked = 0 if layout.sampled is None else len(layout.sampled)
    sampled = None
    if layout.sampled is not None:
        sampled = _spread(scores, layout.sampled, layout.num_sampled)
    first = num_asked
    parts_by_row: dict[int, list[TokenScores]] = {}
    for row, count in layout.prompt:
        parts_by_row.setdefault(row, []).append(_slice(scores, slice(first, first + count)))
        first += count
    return sampled, tuple(_join(parts_by_row[row]) for row in sorted(parts_by_row))


def _spread(scores: TokenScores, rows: Int64Array, num_rows: int) -> TokenScores:
    """Scores of the rows that asked among all sampled rows."""
    logprobs = np.zeros(num_rows, dtype=np.float32)
    top_ids = np.full((num_rows, scores.top_ids.shape[1]), NO_TOKEN, dtype=np.int32)
    top_logprobs = np.zeros(top_ids.shape, dtype=np.float32)
    logprobs[rows] = scores.logprobs[: len(rows)]
    top_ids[rows] = scores.top_ids[: len(rows)]
    top_logprobs[rows] = scores.top_logprobs[: len(rows)]
    return TokenScores(logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)


def _slice(scores: TokenScores, part: slice) -> TokenScores:
    return TokenScores(
        logprobs=scores.logprobs[part],
        top_ids=scores.top_ids[part],
        top_logprobs=scores.top_logprobs[part],
    )


def _join(parts: list[TokenScores]) -> TokenScores:
    if len(parts) == 1:
        return parts[0]
    return TokenScores(
        logprobs=np.concatenate([part.logprobs for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
    )
