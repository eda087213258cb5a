"""Drives a Runner directly, as a minimal scheduler: own pages, any chunking, any companions."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    Runner,
    ScheduleBatch,
    SlotInit,
    StepResult,
    TokenScores,
)
from mizzen_worker.contracts.request import SamplingParams


@dataclass
class Driven:
    """One request: its prompt, what it produced, and where its KV lies."""

    slot: int
    prompt: list[int]
    sampling: SamplingParams
    eos: tuple[int, ...] = ()
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    output: list[int] = field(default_factory=list)
    is_finished: bool = False
    error_tokens: list[int] = field(default_factory=list)
    """Sampled ids that are no tokens."""
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_tops: list[dict[int, float]] = field(default_factory=list)

    @property
    def known(self) -> list[int]:
        """Prompt and output: a request that begins with output is a resumed one."""
        return self.prompt + self.output

    @property
    def request_id(self) -> str:
        return f"request-{self.slot}"


def greedy(max_new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, seed=1, temperature=0.0)


class RunnerDriver:
    """Hands out pages in a scrambled order, so that neighbours in a row are not neighbours."""

    def __init__(self, runner: Runner, *, has_scores: bool = True) -> None:
        """``has_scores`` False: of a rank that follows, which gives none."""
        self._has_scores = has_scores
        self.runner = runner
        self.step = 0
        order = np.random.default_rng(3).permutation(runner.limits.num_pages) + 1
        self._free = [int(page) for page in order]
        self._pending_inits: list[SlotInit] = []
        self._pending_writes: list[PageWrite] = []

    def start(self, request: Driven, shared_pages: list[int] | None = None) -> None:
        """Enter a request; ``shared_pages`` hold a prefix that another request computed."""
        request.pages = list(shared_pages or [])
        request.num_computed = len(request.pages) * self.runner.limits.page_size
        self._pending_inits.append(
            SlotInit(
                slot=request.slot,
                sampling=request.sampling,
                num_prompt_tokens=len(request.prompt),
                num_generated_tokens=len(request.output),
                eos_token_ids=request.eos,
                max_tokens=min(
                    len(request.prompt) + request.sampling.max_new_tokens,
                    self.runner.limits.context_length,
                ),
                history=np.array(request.known, dtype=np.int32)
                if request.sampling.has_penalty
                else None,
            )
        )
        if request.pages:
            self._write(request, 0)

    def run(self, parts: list[tuple[Driven, int]]) -> None:
        """One step: (request, number of prompt tokens to compute; 0 means decode)."""
        self.step += 1
        extending = [(request, count) for request, count in parts if count]
        decoding = [request for request, count in parts if not count]
        rows = tuple(self._extend_row(request, count) for request, count in extending)
        batch = ScheduleBatch(
            step=self.step,
            extends=rows,
            decodes=DecodeRows(
                slots=np.array([request.slot for request in decoding], dtype=np.int32),
                starts=np.array([self._advance(request, 1) for request in decoding], np.int32),
            ),
            slot_inits=tuple(self._pending_inits),
            page_writes=tuple(self._pending_writes),
        )
        self._pending_inits, self._pending_writes = [], []
        result = self.runner.launch(batch).settle()
        assert result.step == self.step
        sampled = [
            request for (request, _), row in zip(extending, rows, strict=True) if row.is_sampled
        ]
        if self._has_scores:
            _take_scores(result, sampled + decoding, [r for r, _ in _scored(extending, rows)])
        else:
            assert result.sampled_scores is None
            assert result.prompt_scores == ()
        ids, flags = result.sampled_ids.tolist(), result.is_finished.tolist()
        for request, token, is_finished in zip(sampled + decoding, ids, flags, strict=True):
            request.is_finished = is_finished
            (request.output if token >= 0 else request.error_tokens).append(token)

    def finish(self, requests: list[Driven]) -> None:
        """Decode until the runner says of every request that it has ended."""
        while live := [r for r in requests if not r.is_finished]:
            self.run([(request, 0) for request in live])

    def generate(self, request: Driven, chunk: int | None = None) -> list[int]:
        """Whole life of one request alone."""
        self.start(request)
        self.prefill(request, chunk)
        self.finish([request])
        return request.output

    def prefill(self, request: Driven, chunk: int | None = None) -> None:
        """Compute the rest of what is known in chunks; the last of them gives a token."""
        num_known = len(request.known)
        while request.num_computed < num_known:
            rest = num_known - request.num_computed
            self.run([(request, min(rest, chunk or rest))])

    def release(self, request: Driven, keep: int = 0) -> None:
        """Give pages back, but for the first ``keep``."""
        self._free.extend(request.pages[keep:])

    def _extend_row(self, request: Driven, count: int) -> ExtendRow:
        start = self._advance(request, count)
        return ExtendRow(
            request_id=request.request_id,
            slot=request.slot,
            start=start,
            num_new=count,
            token_ids=np.array(request.known[start : start + count], dtype=np.int32),
            is_sampled=request.num_computed >= len(request.known),
            **_targets(request, start, start + count),
        )

    def _advance(self, request: Driven, num_new: int) -> int:
        """Cover the next positions with pages; return the first of them."""
        start = request.num_computed
        self._cover(request, start + num_new)
        request.num_computed += num_new
        return start

    def _cover(self, request: Driven, length: int) -> None:
        missing = -(-length // self.runner.limits.page_size) - len(request.pages)
        if missing > 0:
            first = len(request.pages)
            request.pages += [self._free.pop() for _ in range(missing)]
            self._write(request, first)

    def _write(self, request: Driven, first: int) -> None:
        pages = np.array(request.pages[first:], dtype=np.int32)
        self._pending_writes.append(PageWrite(slot=request.slot, first_page=first, pages=pages))


def _targets(request: Driven, start: int, end: int) -> dict[str, Any]:
    """What a row of positions [start, end) is asked about the prompt."""
    params = request.sampling.logprobs
    if params is None or params.prompt_start is None:
        return {}
    first = max(start, params.prompt_start - 1, 0)
    ids = request.prompt[first + 1 : end + 1]
    return {"target_start": first, "target_ids": np.array(ids, np.int32)} if ids else {}


def _scored(
    parts: list[tuple[Driven, int]], rows: tuple[ExtendRow, ...]
) -> list[tuple[Driven, ExtendRow]]:
    pairs = zip(parts, rows, strict=True)
    return [(request, row) for (request, _), row in pairs if row.target_ids is not None]


def _take_scores(result: StepResult, sampled: list[Driven], scored: list[Driven]) -> None:
    for request, scores in zip(scored, result.prompt_scores, strict=True):
        request.prompt_logprobs += scores.logprobs.tolist()
        request.prompt_tops += _tops(request, scores)
    if result.sampled_scores is None:
        assert not any(request.sampling.logprobs for request in sampled)
        return
    for index, request in enumerate(sampled):
        if request.sampling.logprobs is not None:
            request.logprobs.append(float(result.sampled_scores.logprobs[index]))
            request.tops.append(_tops(request, result.sampled_scores)[index])


def _tops(request: Driven, scores: TokenScores) -> list[dict[int, float]]:
    params = request.sampling.logprobs
    assert params is not None
    count = params.num_top
    return [
        dict(zip(ids[:count], values[:count], strict=True))
        for ids, values in zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    ]
